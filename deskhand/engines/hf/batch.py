"""The requests in flight and the forward passes that serve them. Invariant: row b of every step is slot b of the cache.

A request enters by a *prefill* together with all others that were waiting, and takes part in every *decoding step* from then
on until it stops. Everything here runs in the engine's thread, under inference mode.
"""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deskhand.engines.base import Completion, FinishReason, PreparedImage, Prompt, Sampling
from deskhand.engines.hf.parked import Parked, ParkedPrefixes, key_of
from deskhand.engines.hf.sampler import Sampler
from deskhand.engines.hf.slots import SlotCache
from deskhand.models.forward import decode, encode_images, positions, stack_images, unwrap


@dataclass(slots=True)
class EngineStats:
    """Counts since the engine started."""

    requests: int = 0
    prefills: int = 0
    """Forward passes that admitted requests."""
    prefill_tokens: int = 0
    """Prompt tokens that were run."""
    reused_tokens: int = 0
    """Prompt tokens whose keys and values were taken from a finished request."""
    decode_steps: int = 0
    decoded_tokens: int = 0
    images_encoded: int = 0
    largest_batch: int = 0

    def copy(self) -> EngineStats:
        return EngineStats(**{item.name: getattr(self, item.name) for item in fields(self)})


@dataclass(slots=True, eq=False)
class Request:
    """One call in flight and what it has sampled so far."""

    prompt: Prompt
    sampling: Sampling
    max_tokens: int
    future: asyncio.Future[Completion]
    generator: random.Random
    key: np.ndarray = field(init=False)
    cancelled: bool = False
    served_ids: tuple[int, ...] = ()
    """The prompt ids that were run, here or (where keys and values are reused) for an earlier request."""
    reused: Parked | None = None
    """A finished request whose keys and values this one continues completely."""
    first_version: int = -1
    """Version of the weights that computed the first keys and values."""
    next_position: int = 0
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.key = key_of(self.prompt.token_ids, self.prompt.spans)

    @property
    def images(self) -> Mapping[str, PreparedImage]:
        return self.prompt.images or {}

    @property
    def finish_reason(self) -> FinishReason | None:
        if self.token_ids and self.token_ids[-1] in self.sampling.stop_ids:
            return "stop"
        return "length" if len(self.token_ids) >= self.max_tokens else None


class Batch:
    """The model, the cache and the requests in flight."""

    def __init__(
        self, model: Any, *, max_batch: int, max_tokens: int, prefill_tokens: int, parked_tokens: int, cached_images: int
    ) -> None:
        self.model = model
        core = unwrap(model)
        self._head = core.lm_head
        self._merge_size = core.config.vision_config.spatial_merge_size
        self._vocabulary = core.config.text_config.vocab_size
        weight = core.lm_head.weight
        self._device = weight.device
        self._slots = SlotCache(core.config.text_config, weight.dtype, weight.device, max_batch, max_tokens)
        self._max_batch, self._prefill_tokens = max_batch, prefill_tokens
        self._parked = ParkedPrefixes(parked_tokens)
        self._features: OrderedDict[str, tuple[Tensor, ...]] = OrderedDict()
        self._cached_images = cached_images
        self._sampler: Sampler | None = None
        self.requests: list[Request] = []
        """By slot."""
        self.stats = EngineStats()

    @property
    def room(self) -> int:
        """How many more requests can be in flight."""
        return self._max_batch - len(self.requests)

    def admit(self, waiting: Sequence[Request], version: int) -> list[Request]:
        """Prefill as many of the waiting requests, in order, as one forward pass should take; those that were taken."""
        taken: list[tuple[Request, int]] = []
        widest = 0
        for request in waiting[: self.room]:
            found = self._parked.find(request.key)
            start = found[1] if found else 0
            width = max(widest, len(request.key) - start)
            if taken and width * (len(taken) + 1) > self._prefill_tokens:
                break
            widest = width
            taken.append((request, start))
            request.first_version = version
            request.reused = found[0] if found and found[1] == len(found[0].key) else None
            request.served_ids = found[0].token_ids[:start] if found else ()
            prefix = found[0].keys_values[:, :, :start] if found else None
            self._slots.open(prefix, len(request.key) + 1)
        first = len(self.requests)
        self.requests.extend(request for request, _ in taken)
        self._sampler = None
        self._prefill(first, [start for _, start in taken], widest, version)
        return [request for request, _ in taken]

    def _prefill(self, first: int, starts: list[int], width: int, version: int) -> None:
        rows = self.requests[first:]
        ids_BT = np.zeros((len(rows), width), dtype=np.int64)
        positions_3BT = np.zeros((3, len(rows), width), dtype=np.int64)
        placeholders: list[np.ndarray] = []
        pieces: list[tuple[str, int, int]] = []
        for b, (request, start) in enumerate(zip(rows, starts, strict=True)):
            prompt, length = request.prompt, len(request.key) - start
            ids_BT[b, :length] = prompt.token_ids[start:]
            places_3T, request.next_position = positions(len(request.key), prompt.spans, request.images, self._merge_size)
            positions_3BT[:, b, :length] = places_3T[:, start:]
            request.served_ids += tuple(ids_BT[b, :length].tolist())
            for span in prompt.spans:
                skip = max(0, start - span.start)
                if skip < span.count:
                    offset = b * width + span.start + skip - start
                    placeholders.append(np.arange(offset, offset + span.count - skip))
                    pieces.append((span.sha256, skip, span.count))
        features = self._image_features(rows, pieces)
        append = self._slots.append(first, len(rows), width)
        hidden_BTH = decode(
            self.model,
            torch.from_numpy(ids_BT).to(self._device),
            torch.from_numpy(positions_3BT).to(self._device),
            features,
            torch.from_numpy(np.concatenate(placeholders)).to(self._device) if placeholders else None,
            append.mask,
            append,
        )
        lengths = [len(request.key) - start for request, start in zip(rows, starts, strict=True)]
        for slot, length in enumerate(lengths, first):
            self._slots.lengths[slot] += length
        last_B = torch.tensor([b * width + length - 1 for b, length in enumerate(lengths)], device=self._device)
        logits_BV = self._head(hidden_BTH.reshape(-1, hidden_BTH.shape[-1]).index_select(0, last_B))
        self.stats.requests += len(rows)
        self.stats.prefills += 1
        self.stats.prefill_tokens += sum(lengths)
        self.stats.reused_tokens += sum(starts)
        self.stats.largest_batch = max(self.stats.largest_batch, len(self.requests))
        sampler = Sampler([request.sampling for request in rows], self._vocabulary, self._device)
        self._take(rows, sampler, logits_BV, version)

    def step(self, version: int) -> None:
        """One decoding step of all requests in flight."""
        rows = self.requests
        if self._sampler is None:
            self._sampler = Sampler([request.sampling for request in rows], self._vocabulary, self._device)
        inputs_2B = torch.tensor(
            [[request.token_ids[-1] for request in rows], [request.next_position for request in rows]], device=self._device
        )
        append = self._slots.append(0, len(rows), 1)
        hidden_B1H = decode(
            self.model, inputs_2B[0].unsqueeze(1), inputs_2B[1].view(1, -1, 1).expand(3, -1, 1), mask=append.mask, cache=append
        )
        for slot, request in enumerate(rows):
            self._slots.lengths[slot] += 1
            request.next_position += 1
        self.stats.decode_steps += 1
        self._take(rows, self._sampler, self._head(hidden_B1H[:, 0]), version)

    def _take(self, rows: Sequence[Request], sampler: Sampler, logits_BV: Tensor, version: int) -> None:
        uniforms = [1.0 - request.generator.random() for request in rows]
        for request, token, logprob in zip(rows, *sampler.sample(logits_BV, uniforms), strict=True):
            request.token_ids.append(token)
            request.logprobs.append(logprob)
            request.versions.append(version)
        self.stats.decoded_tokens += len(rows)

    def finished(self, version: int) -> list[Request]:
        """Take the requests that stopped or were cancelled out of the batch; their slots are free afterwards."""
        done = [slot for slot, request in enumerate(self.requests) if request.cancelled or request.finish_reason]
        removed = []
        for slot in reversed(done):
            request = self.requests[slot]
            if request.finish_reason and request.first_version == version:
                sampled = request.token_ids[:-1]
                key = np.concatenate([request.key, np.array(sampled, dtype=np.int64)])
                entry = Parked(key, request.served_ids + tuple(sampled), self._slots.read(slot))
                self._parked.add(entry, request.reused)
            self._slots.free(slot)
            self.requests[slot] = self.requests[-1]
            self.requests.pop()
            removed.append(request)
        if removed:
            self._sampler = None
        return removed

    def _image_features(self, rows: Sequence[Request], pieces: Sequence[tuple[str, int, int]]) -> tuple[Tensor, ...]:
        """Features of the placeholders of a prefill, one after the other; images not seen before are encoded together."""
        known = {name: image for request in rows for name, image in request.images.items()}
        missing = [name for name in dict.fromkeys(name for name, _, _ in pieces) if name not in self._features]
        if missing:
            pixels, grids = stack_images([known[name] for name in missing], self._device)
            assert pixels is not None
            assert grids is not None
            layers = encode_images(self.model, pixels, grids)
            counts = [known[name].tokens for name in missing]
            for name, *features in zip(missing, *(layer.split(counts) for layer in layers), strict=True):
                self._features[name] = tuple(features)
            self.stats.images_encoded += len(missing)
        if not pieces:
            return ()
        chosen = [tuple(layer[skip:count] for layer in self._features[name]) for name, skip, count in pieces]
        for name, _, _ in pieces:
            self._features.move_to_end(name)
        while len(self._features) > max(self._cached_images, len(missing)):
            self._features.popitem(last=False)
        return tuple(torch.cat(layer) for layer in zip(*chosen, strict=True))

    def load_weights(self, weights: Mapping[str, Any], targets: Mapping[str, Tensor]) -> None:
        """Copy new weights in place. Keys and values of requests in flight stay; all that could serve later requests is dropped."""
        seen_changed = False
        for name, value in weights.items():
            target, value = targets[name], torch.as_tensor(value)
            if ".visual." in name and not seen_changed:
                seen_changed = not torch.equal(target, value.to(target.device, target.dtype))
            target.copy_(value)
        self._parked.clear()
        if seen_changed:
            self._features.clear()

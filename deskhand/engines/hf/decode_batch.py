"""Requests in flight and the forward passes that serve them. Used by `hf.engine`.

Waiting requests are admitted by a *prefill* and take part in every *decoding step* until they stop. Everything runs in
the engine's thread, under inference mode.

Invariant: row b of every step is slot b of the cache.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deskhand.config.schema import EngineConfig
from deskhand.engines.hf.grammar import GrammarState
from deskhand.engines.hf.kv_cache import KVCache, KVCacheView
from deskhand.engines.hf.prefix_cache import CachedPrefix, PrefixCache, key_of
from deskhand.engines.hf.sampler import Sampler
from deskhand.errors import ConfigError
from deskhand.models.forward import encode_images, forward_decoder, positions, stack_images, unwrap
from deskhand.types import Completion, FinishReason, PreparedImage, Prompt, Sampling, UnsupportedGrammar

_PADDING = 1.5
"""Maximum ratio of padded to real tokens in a prefill."""


@dataclass(slots=True)
class EngineStats:
    """Counts and seconds since the engine started. Where kernels run asynchronously, `vision_s` is in `prefill_s`."""

    requests: int = 0
    prefills: int = 0
    """Forward passes that admitted requests."""
    prefill_tokens: int = 0
    """Prompt tokens computed."""
    reused_tokens: int = 0
    """Prompt tokens whose keys, values and states came from the prefix cache."""
    decode_steps: int = 0
    decoded_tokens: int = 0
    images_encoded: int = 0
    largest_batch: int = 0
    vision_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0


@dataclass(slots=True, eq=False)
class DecodeRequest:
    """One call in flight, with the tokens sampled so far."""

    prompt: Prompt
    sampling: Sampling
    max_tokens: int
    future: asyncio.Future[Completion]
    generator: random.Random
    progress: GrammarState | None = None
    """State of the reply in its grammar."""
    text_of: Callable[[list[int]], str] | None = None
    """Decodes sampled ids, for `stop_texts`."""
    key: np.ndarray = field(init=False)
    cancelled: bool = False
    failure: Exception | None = None
    """Error of this request alone."""
    served_ids: tuple[int, ...] = ()
    """Prompt ids that were computed, here or for the reused prefix."""
    reused: CachedPrefix | None = None
    """Cache entry that this request continues completely."""
    first_version: int = -1
    """Weights version of the first keys and values."""
    next_position: int = 0
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    top_logprobs: list[tuple[tuple[int, float], ...]] = field(default_factory=list)
    text_ended: bool = False
    """Whether the text contains a stop text."""

    def __post_init__(self) -> None:
        self.key = key_of(self.prompt.token_ids, self.prompt.spans)

    @property
    def images(self) -> Mapping[str, PreparedImage]:
        return self.prompt.images or {}

    def allowed(self) -> np.ndarray | None:
        """Return bool[vocabulary], the ids allowed by the grammar, or None; set `failure` if none is allowed."""
        if self.progress is None:
            return None
        allowed = self.progress.allowed()
        allowed[list(self.sampling.banned_ids)] = False
        if allowed.any():
            return allowed
        self.failure = UnsupportedGrammar(
            "no token can continue the reply: the tokenizer cannot produce what the grammar requires"
        )
        return None

    def take(self, token_id: int, logprob: float, version: int) -> None:
        """Add a sampled token."""
        self.token_ids.append(token_id)
        self.logprobs.append(logprob)
        self.versions.append(version)
        if self.progress is not None:
            self.progress.take(token_id)
        if self.text_of is not None and token_id not in self.sampling.stop_ids:
            text = self.text_of(self.token_ids)
            self.text_ended = any(stop in text for stop in self.sampling.stop_texts)

    @property
    def finish_reason(self) -> FinishReason | None:
        if self.text_ended or (self.token_ids and self.token_ids[-1] in self.sampling.stop_ids):
            return "stop"
        return "length" if len(self.token_ids) >= self.max_tokens else None


@dataclass(frozen=True, slots=True)
class _Newcomer:
    """A request to be prefilled, whose first `start` tokens are in the prefix cache."""

    request: DecodeRequest
    found: CachedPrefix | None
    start: int

    @property
    def width(self) -> int:
        """Number of tokens to compute."""
        return len(self.request.key) - self.start


class DecodeBatch:
    """Model, cache and requests in flight."""

    def __init__(self, model: Any, config: EngineConfig) -> None:
        max_batch, max_tokens = config.max_num_seqs, config.max_model_len
        self.model = model
        core = unwrap(model)
        self._head = core.lm_head
        self._merge_size = core.config.vision_config.spatial_merge_size
        self._vocabulary = core.config.text_config.vocab_size
        weight = core.lm_head.weight
        self._device = weight.device
        self._slots = KVCache(core.config, weight.dtype, weight.device, max_batch, max_tokens)
        if weight.device.type == "cuda":  # reserved at once: growing needs twice the memory and fragments it
            try:
                self._slots.reserve(max_batch, max_tokens)
            except torch.OutOfMemoryError as error:
                raise ConfigError(
                    f"engine.max_num_seqs: the KV cache of {max_batch} x engine.max_model_len {max_tokens} does not "
                    "fit on the GPU; lower one of them (see deskhand estimate)"
                ) from error
        self._max_batch, self._prefill_tokens = max_batch, config.max_num_batched_tokens
        self._prefixes = PrefixCache(config.prefix_cache_tokens)
        self._features: OrderedDict[str, tuple[Tensor, ...]] = OrderedDict()
        self._image_tokens = config.image_cache_tokens
        self._sampler: Sampler | None = None
        self.requests: list[DecodeRequest] = []
        """Requests by slot."""
        self.stats = EngineStats()

    @property
    def room(self) -> int:
        """Number of free slots."""
        return self._max_batch - len(self.requests)

    def image_features(self, sha256: str) -> tuple[Tensor, ...] | None:
        """Return an image's features if they are cached; may be called in other threads."""
        return self._features.get(sha256)

    def admit(self, waiting: Sequence[DecodeRequest], version: int) -> None:
        """Prefill waiting requests, at most `room`, in as few forward passes as their lengths allow."""
        newcomers = []
        for request in waiting:
            found = self._prefixes.find(request.key)
            newcomers.append(_Newcomer(request, *(found or (None, 0))))
        newcomers.sort(key=lambda newcomer: newcomer.width)
        while newcomers:
            count = self._fitting(newcomers)
            self._prefill(newcomers[:count], version)
            newcomers = newcomers[count:]

    def _fitting(self, newcomers: Sequence[_Newcomer]) -> int:
        """Return how many newcomers, shortest first, fit into one pass within the limits of size and padding."""
        real = 0
        for count, newcomer in enumerate(newcomers, 1):
            real += newcomer.width
            padded = newcomer.width * count
            if count > 1 and (padded > self._prefill_tokens or padded > real * _PADDING):
                return count - 1
        return len(newcomers)

    def _prefill(self, newcomers: Sequence[_Newcomer], version: int) -> None:
        started, vision_s = time.perf_counter(), self.stats.vision_s
        first, width = len(self.requests), newcomers[-1].width
        rows = [newcomer.request for newcomer in newcomers]
        ids_BT = np.zeros((len(rows), width), dtype=np.int64)
        positions_3BT = np.zeros((3, len(rows), width), dtype=np.int64)
        placeholders: list[np.ndarray] = []
        pieces: list[tuple[PreparedImage, int]] = []
        for b, newcomer in enumerate(newcomers):
            request, found, start, length = newcomer.request, newcomer.found, newcomer.start, newcomer.width
            prompt = request.prompt
            self._slots.open(found.first(start) if found is not None else None, len(request.key) + 1)
            request.first_version = version
            request.reused = found if found is not None and len(found.key) == start else None
            ids_BT[b, :length] = prompt.token_ids[start:]
            positions_3T, request.next_position = positions(
                len(request.key), prompt.spans, request.images, self._merge_size
            )
            positions_3BT[:, b, :length] = positions_3T[:, start:]
            shared_ids = found.token_ids[:start] if found is not None else ()
            request.served_ids = shared_ids + tuple(ids_BT[b, :length].tolist())
            for span in prompt.spans:
                skip = max(0, start - span.start)
                if skip < span.count:
                    offset = b * width + span.start + skip - start
                    placeholders.append(np.arange(offset, offset + span.count - skip))
                    pieces.append((request.images[span.sha256], skip))
        self.requests.extend(rows)
        self._sampler = None
        features = self._image_features(pieces)
        lengths = [newcomer.width for newcomer in newcomers]
        append = KVCacheView(self._slots, first, lengths)
        hidden_BTH = forward_decoder(
            self.model,
            torch.from_numpy(ids_BT).to(self._device),
            torch.from_numpy(positions_3BT).to(self._device),
            features,
            torch.from_numpy(np.concatenate(placeholders)).to(self._device) if placeholders else None,
            append.mask,
            append,
        )
        for slot, length in enumerate(lengths, first):
            self._slots.lengths[slot] += length
        last_B = torch.tensor([b * width + length - 1 for b, length in enumerate(lengths)], device=self._device)
        logits_BV = self._head(hidden_BTH.reshape(-1, hidden_BTH.shape[-1]).index_select(0, last_B))
        self.stats.requests += len(rows)
        self.stats.prefills += 1
        self.stats.prefill_tokens += sum(lengths)
        self.stats.reused_tokens += sum(newcomer.start for newcomer in newcomers)
        self.stats.largest_batch = max(self.stats.largest_batch, len(self.requests))
        sampler = Sampler([request.sampling for request in rows], self._vocabulary, self._device)
        self._take(rows, sampler, logits_BV, version)
        self.stats.prefill_s += time.perf_counter() - started - (self.stats.vision_s - vision_s)

    def step(self, version: int) -> None:
        """Run one decoding step of all requests in flight."""
        started, rows = time.perf_counter(), self.requests
        if self._sampler is None:
            self._sampler = Sampler([request.sampling for request in rows], self._vocabulary, self._device)
        inputs_2B = torch.tensor(
            [[request.token_ids[-1] for request in rows], [request.next_position for request in rows]],
            device=self._device,
        )
        append = KVCacheView(self._slots, 0, [1] * len(rows))
        hidden_B1H = forward_decoder(
            self.model,
            inputs_2B[0].unsqueeze(1),
            inputs_2B[1].view(1, -1, 1).expand(3, -1, 1),
            mask=append.mask,
            cache=append,
        )
        for slot, request in enumerate(rows):
            self._slots.lengths[slot] += 1
            request.next_position += 1
        self.stats.decode_steps += 1
        self._take(rows, self._sampler, self._head(hidden_B1H[:, 0]), version)
        self.stats.decode_s += time.perf_counter() - started

    def _take(self, rows: Sequence[DecodeRequest], sampler: Sampler, logits_BV: Tensor, version: int) -> None:
        uniforms = [1.0 - request.generator.random() for request in rows]
        allowed = {row: mask for row, request in enumerate(rows) if (mask := request.allowed()) is not None}
        tokens, logprobs = sampler.sample(logits_BV, uniforms, allowed)
        if not all(map(math.isfinite, logprobs)):
            raise FloatingPointError(f"the weights of version {version} produce logits that are not finite")
        for row, (request, token, logprob) in enumerate(zip(rows, tokens, logprobs, strict=True)):
            if request.failure is not None:
                continue
            request.take(token, logprob, version)
            if request.sampling.top_logprobs:
                request.top_logprobs.append(sampler.most_likely(row, request.sampling.top_logprobs))
        self.stats.decoded_tokens += len(rows)

    def finished(self, version: int) -> list[DecodeRequest]:
        """Remove requests that stopped or were canceled from the batch and free their slots."""
        done = [
            slot
            for slot, request in enumerate(self.requests)
            if request.cancelled or request.failure or request.finish_reason
        ]
        removed = []
        for slot in reversed(done):
            request = self.requests[slot]
            if request.finish_reason and not request.failure and request.first_version == version:
                sampled = request.token_ids[:-1]
                key = np.concatenate([request.key, np.array(sampled, dtype=np.int64)])
                entry = CachedPrefix(key, request.served_ids + tuple(sampled), self._slots.read(slot))
                self._prefixes.add(entry, request.reused)
            self._slots.free(slot)
            self.requests[slot] = self.requests[-1]
            self.requests.pop()
            removed.append(request)
        if removed:
            self._sampler = None
        return removed

    def _image_features(self, pieces: Sequence[tuple[PreparedImage, int]]) -> tuple[Tensor, ...]:
        """Return the concatenated features of the images without their first rows; uncached ones are encoded together.
        `pieces` are (image, number of placeholders to skip) in the order of a prefill."""
        if not pieces:
            return ()
        missing = list({image.sha256: image for image, _ in pieces if image.sha256 not in self._features}.values())
        if missing:
            started = time.perf_counter()
            layers = encode_images(self.model, *stack_images(missing, self._device))
            counts = [image.tokens for image in missing]
            for image, *features in zip(missing, *(layer.split(counts) for layer in layers), strict=True):
                self._features[image.sha256] = tuple(features)
            self.stats.images_encoded += len(missing)
            self.stats.vision_s += time.perf_counter() - started
        chosen = [tuple(layer[skip:] for layer in self._features[image.sha256]) for image, skip in pieces]
        for image, _ in pieces:
            self._features.move_to_end(image.sha256)
        cached = sum(len(layers[0]) for layers in self._features.values())
        while cached > self._image_tokens:
            _, evicted = self._features.popitem(last=False)
            cached -= len(evicted[0])
        return tuple(torch.cat(layer) for layer in zip(*chosen, strict=True))

    def load_weights(self, weights: Mapping[str, Any], targets: Mapping[str, Tensor]) -> None:
        """Copy new weights in place. Requests in flight keep their keys and values; caches are cleared."""
        vision_changed = False
        for name, value in weights.items():
            target, value = targets[name], torch.as_tensor(value)
            if ".visual." in name and not vision_changed:
                vision_changed = not torch.equal(target, value.to(target.device, target.dtype))
            target.copy_(value)
        self.clear_caches(vision_changed)

    def clear_caches(self, vision_changed: bool) -> None:
        """Clear the prefix cache, and the image features if the vision tower changed."""
        self._prefixes.clear()
        if vision_changed:
            self._features.clear()

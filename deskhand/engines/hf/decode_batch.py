"""Requests in flight and the forward passes that serve them. Used by `hf.engine`.

Waiting requests are admitted by a *prefill* and take part in every *decoding step* until they stop. A prompt that is
longer than one prefill may be is computed in chunks, with decoding steps between them; after each but the last, its
state leaves its slot and is kept like a cached prefix. Everything runs in the engine's thread, under inference mode.

Invariants: row b of every step is slot b of the cache. Only the last chunk of a prompt samples.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deskhand.config.schema import EngineConfig
from deskhand.engines.hf.decode_request import DecodeRequest
from deskhand.engines.hf.kv_cache import KVCache, KVCacheView
from deskhand.engines.hf.prefix_cache import CachedPrefix, PrefixCache
from deskhand.engines.hf.sampler import Sampler
from deskhand.errors import ConfigError
from deskhand.models.forward import encode_images, forward_decoder, positions, stack_images, unwrap
from deskhand.models.transfer import to_device
from deskhand.types import PreparedImage

_PADDING = 1.5
"""Maximum ratio of padded to real tokens in a prefill."""


@dataclass(slots=True)
class EngineStats:
    """Counts and seconds since the engine started. Where kernels run asynchronously, `vision_s` is in `prefill_s`."""

    requests: int = 0
    prefills: int = 0
    """Forward passes that admitted requests."""
    chunks: int = 0
    """Forward passes over a part of a prompt, without its end."""
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


@dataclass(frozen=True, slots=True)
class _Newcomer:
    """A request to be prefilled up to token `end`, whose first `start` tokens are cached or were computed before."""

    request: DecodeRequest
    found: CachedPrefix | None
    start: int
    end: int

    @property
    def width(self) -> int:
        """Number of tokens to compute."""
        return self.end - self.start


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
        self._partial: tuple[DecodeRequest, CachedPrefix] | None = None
        """The first waiting request, if a part of its prompt was computed, and that part."""
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

    def admit(self, waiting: Sequence[DecodeRequest], version: int) -> int:
        """Prefill the first waiting requests, at most `room`, and return their number.

        They have at most `engine.max_num_batched_tokens` tokens to compute. If the first alone has more, this many are
        computed and it is not admitted yet. `waiting` then starts with it in the next call, unless it was canceled.
        """
        if self._partial is not None and (not waiting or waiting[0] is not self._partial[0]):
            self._partial = None
        newcomers: list[_Newcomer] = []
        left = self._prefill_tokens
        for request in waiting[: self.room]:
            newcomer = self._newcomer(request)
            if newcomer.width > left:
                if not newcomers:
                    self._prefill([replace(newcomer, end=newcomer.start + left)], version)
                break
            newcomers.append(newcomer)
            left -= newcomer.width
        admitted = len(newcomers)
        newcomers.sort(key=lambda newcomer: newcomer.width)
        while newcomers:
            count = self._fitting(newcomers)
            self._prefill(newcomers[:count], version)
            newcomers = newcomers[count:]
        if admitted:
            self._partial = None
        return admitted

    def _newcomer(self, request: DecodeRequest) -> _Newcomer:
        end = len(request.key)
        if self._partial is not None and request is self._partial[0]:
            return _Newcomer(request, self._partial[1], len(self._partial[1].key), end)
        found, start = self._prefixes.find(request.key) or (None, 0)
        request.reused = found if found is not None and len(found.key) == start else None
        return _Newcomer(request, found, start, end)

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
        """Compute prompts in one pass and sample their first tokens, or compute one chunk of one prompt."""
        started, vision_s = time.perf_counter(), self.stats.vision_s
        first, width = len(self.requests), newcomers[-1].width
        rows = [newcomer.request for newcomer in newcomers]
        ids_BT = np.zeros((len(rows), width), dtype=np.int64)
        positions_3BT = np.zeros((3, len(rows), width), dtype=np.int64)
        placeholders: list[np.ndarray] = []
        pieces: list[tuple[PreparedImage, slice]] = []
        for b, newcomer in enumerate(newcomers):
            request, found, start, end = newcomer.request, newcomer.found, newcomer.start, newcomer.end
            prompt, length = request.prompt, newcomer.width
            self._slots.open(found.first(start) if found is not None else None, len(request.key) + 1)
            request.first_version = version
            ids_BT[b, :length] = prompt.token_ids[start:end]
            positions_3T, request.next_position = positions(
                len(request.key), prompt.spans, request.images, self._merge_size
            )
            positions_3BT[:, b, :length] = positions_3T[:, start:end]
            shared_ids = found.token_ids[:start] if found is not None else ()
            request.served_ids = shared_ids + tuple(ids_BT[b, :length].tolist())
            for span in prompt.spans:
                inside = range(max(span.start, start), min(span.start + span.count, end))
                if inside:
                    placeholders.append(np.array(inside) + (b * width - start))
                    pieces.append(
                        (request.images[span.sha256], slice(inside[0] - span.start, inside[-1] + 1 - span.start))
                    )
            if self._partial is None or found is not self._partial[1]:
                self.stats.reused_tokens += start
        features = self._image_features(pieces)
        lengths = [newcomer.width for newcomer in newcomers]
        append = KVCacheView(self._slots, first, lengths)
        hidden_BTH = forward_decoder(
            self.model,
            to_device(torch.from_numpy(ids_BT), self._device),
            to_device(torch.from_numpy(positions_3BT), self._device),
            features,
            to_device(torch.from_numpy(np.concatenate(placeholders)), self._device) if placeholders else None,
            append.mask,
            append,
        )
        for slot, length in enumerate(lengths, first):
            self._slots.lengths[slot] += length
        self.stats.prefill_tokens += sum(lengths)
        if newcomers[0].end < len(rows[0].key):
            self._keep_partial(newcomers[0])
        else:
            last_B = torch.tensor([b * width + length - 1 for b, length in enumerate(lengths)])
            hidden_BH = hidden_BTH.reshape(-1, hidden_BTH.shape[-1]).index_select(0, to_device(last_B, self._device))
            self.requests.extend(rows)
            self._sampler = None
            self.stats.requests += len(rows)
            self.stats.prefills += 1
            self.stats.largest_batch = max(self.stats.largest_batch, len(self.requests))
            self._take(rows, self._sampler_of(rows), self._head(hidden_BH), version)
        self.stats.prefill_s += time.perf_counter() - started - (self.stats.vision_s - vision_s)

    def _keep_partial(self, newcomer: _Newcomer) -> None:
        """Move the state of a chunk's row out of its slot, the last, so that row b of decoding steps stays slot b."""
        request, slot = newcomer.request, len(self.requests)
        entry = CachedPrefix(request.key[: newcomer.end], request.served_ids, self._slots.read(slot))
        self._partial = request, entry
        self._slots.free(slot)
        self.stats.chunks += 1

    def _sampler_of(self, rows: Sequence[DecodeRequest]) -> Sampler:
        return Sampler([request.sampling for request in rows], self._vocabulary, self._device)

    def step(self, version: int) -> None:
        """Run one decoding step of all requests in flight."""
        started, rows = time.perf_counter(), self.requests
        if self._sampler is None:
            self._sampler = self._sampler_of(rows)
        inputs = [[request.token_ids[-1] for request in rows], [request.next_position for request in rows]]
        inputs_2B = to_device(torch.tensor(inputs), self._device)
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

    def _image_features(self, pieces: Sequence[tuple[PreparedImage, slice]]) -> tuple[Tensor, ...]:
        """Return the concatenated features of parts of images; uncached images are encoded together, whole.
        `pieces` are (image, its placeholders in the pass) in the order of a prefill."""
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
        chosen = [tuple(layer[part] for layer in self._features[image.sha256]) for image, part in pieces]
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
        """Clear the prefix cache and the chunks of a waiting prompt, and the image features if the vision tower
        changed."""
        self._prefixes.clear()
        self._partial = None
        if vision_changed:
            self._features.clear()

"""Engine interface and its data types: token ids in, token ids out.

Implemented by `engines.*`; used by the recorder, agents and the trainer. A `Prompt` has *expanded* image placeholders
(one id per image token); engines translate to their server's form. Engines know nothing of text or tokenizers.

Invariant: engines return the ids that were actually served; the recorder compares them with the prompt.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args, runtime_checkable

import numpy as np

from deskhand.errors import AgentError

FinishReason = Literal["stop", "length", "aborted"]


@dataclass(frozen=True, slots=True)
class ImageSpan:
    """`count` placeholder tokens from index `start` of a prompt, for the image `sha256`."""

    start: int
    count: int
    sha256: str


class Checksum:
    """Checksum of an image's stored pixels as first recorded, shared by all uses of the image in a process."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: int | None = None

    def record(self, stored: np.ndarray) -> None:
        if self.value is None:
            self.value = _checksum(stored)

    def matches(self, stored: np.ndarray) -> bool:
        return self.value == _checksum(stored)


_WORDS = 512
"""8-byte words that are summed up at once."""


def _checksum(stored: np.ndarray) -> int:
    """Return the CRC-32 of one number per 4 KiB: its 8-byte words times odd numbers, mod 2^64; then of the rest.

    The position of every byte counts, as in a CRC-32 over all bytes, at a quarter of the time.
    """
    data = np.ascontiguousarray(stored).reshape(-1).view(np.uint8)
    rows = len(data) // (8 * _WORDS)
    words_RW = data[: rows * 8 * _WORDS].view(np.uint64).reshape(rows, _WORDS)
    sums_R = np.einsum("rw,w->r", words_RW, _odd_numbers(_WORDS))
    return zlib.crc32(data[rows * 8 * _WORDS :].data, zlib.crc32(sums_R.data))


@functools.cache
def _odd_numbers(count: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 1 << 63, count, dtype=np.uint64) * np.uint64(2) + np.uint64(1)


_CHUNK = 128
"""Patches looked up at once, so that intermediate arrays stay in the CPU cache."""


@dataclass(frozen=True, slots=True)
class PatchLookup:
    """Converts stored patches to pixel values. Picklable, for processes without the processor's library.

    `table_CV`: float32[channels, 256], or None if the stored patches are the values.
    `frames`: number of copies of the frame in a patch.
    """

    table_CV: np.ndarray | None
    frames: int

    def shape(self, patches: np.ndarray) -> tuple[int, int]:
        """Return the shape of the values of stored patches."""
        if self.table_CV is None:
            return patches.shape[0], patches.shape[1]
        return patches.shape[0], patches.shape[1] * self.frames * patches.shape[2]

    def values(self, patches: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Return float32[patches, patch values] of stored patches, `uint8[patches, channels, values of one frame]`;
        bytes are looked up into `out` if given."""
        if self.table_CV is None:
            return patches
        count, channels, size = patches.shape
        out = np.empty(self.shape(patches), dtype=np.float32) if out is None else out
        values_NCFP = out.reshape(count, channels, self.frames, size)
        for start in range(0, count, _CHUNK):
            chunk = slice(start, start + _CHUNK)
            for channel in range(channels):
                table_V = self.table_CV[channel]
                values_NCFP[chunk, channel] = np.take(table_V, patches[chunk, channel], mode="clip")[:, None]
        return out


@runtime_checkable
class StoredPixels(Protocol):
    """Pixel values of an image in the form in which they are kept; `numpy.asarray` computes the values."""

    @property
    def lookup(self) -> PatchLookup: ...

    def stored(self) -> np.ndarray:
        """Return the stored patches for `lookup`. The first call may take milliseconds."""
        ...


@dataclass(frozen=True, slots=True)
class PreparedImage:
    """An image after the checkpoint's preprocessing; one per process and content hash.

    `pixel_values`: float32[patches, channels*temporal*patch*patch], the input of Qwen-VL vision towers, or
    `StoredPixels`, which `numpy.asarray` converts to it in a few milliseconds. `grid_thw`: (t, h, w) in patches.
    `tokens`: number of placeholders (`t*h*w / merge_size**2`).
    """

    sha256: str
    pixel_values: Any
    grid_thw: tuple[int, int, int]
    tokens: int
    width: int
    height: int
    checksum: Checksum | None = None
    """Checksum of the stored pixels, if recorded; verified when a batch is built."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids with expanded placeholders, image spans in order, and images by hash."""

    token_ids: tuple[int, ...]
    spans: tuple[ImageSpan, ...] = ()
    images: Mapping[str, PreparedImage] | None = None


Feature = Literal["regex", "json_schema", "stop_texts", "top_logprobs"]
"""Optional engine features. A request that needs a missing feature is rejected by name."""


Restriction = Literal["temperature 0", "top_p", "grammar", "human"]
"""Why a reply is imitated at most: a setting of the request, or a person who wrote the reply (`engines.takeover`)."""
RESTRICTIONS: tuple[Restriction, ...] = get_args(Restriction)


class UnsupportedGrammar(AgentError):
    """The engine cannot sample by this grammar, for the reason in the message."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """Pattern that the whole text of a reply must match; stop ids are offered only where it matches.

    `kind` "regex": `text` is a Python regular expression; "json_schema": `text` is a JSON Schema.
    """

    kind: Literal["regex", "json_schema"]
    text: str


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters. `temperature` 0 is greedy.

    Log-probs are of the softmax over logits divided by `temperature` (by 1 if greedy), after removing `banned_ids` and
    before `top_p` and `grammar` are applied.
    """

    max_tokens: int = 64
    temperature: float = 1.0
    top_p: float = 1.0
    stop_ids: tuple[int, ...] = ()
    banned_ids: tuple[int, ...] = ()
    """Ids that are never sampled, such as image placeholders; their logits are -inf before the softmax."""
    seed: int | None = None
    grammar: Grammar | None = None
    """Constraint on the reply. Needs the feature of its kind."""
    stop_texts: tuple[str, ...] = ()
    """Sampling stops once the reply's text contains one of these. Needs the feature "stop_texts"."""
    top_logprobs: int = 0
    """Number of most likely ids returned for each sampled token. Needs the feature "top_logprobs"."""

    @property
    def restriction(self) -> Restriction | None:
        """The setting that leaves fewer ids to sample from than the log-probs are over; None if there is none.

        Recorded log-probs are then not those of the sampled distribution, whatever the engine, so a policy gradient
        through them would be biased.
        """
        if self.temperature == 0:
            return "temperature 0"
        return "top_p" if self.top_p < 1 else "grammar" if self.grammar is not None else None


@dataclass(frozen=True, slots=True)
class Completion:
    """Sampled tokens. `token_ids`, `logprobs` and `versions` have equal length; a final stop id is included."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    """Weights version that sampled each token."""
    finish_reason: FinishReason
    served_ids: tuple[int, ...]
    """Prompt ids that the model received, with expanded placeholders."""
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...] = ()
    """Most likely (id, log-prob) of each sampled token, best first; empty unless requested."""
    exact: bool = True
    """Whether ids are those that were sampled. Inexact completions are never trained on."""
    restriction: Restriction | None = None
    """"human", or `Sampling.restriction` of the request, as the recorder sets it. Such completions are imitated at
    most."""


@dataclass(frozen=True, slots=True)
class LoraWeights:
    """A LoRA adapter in peft's format: `weights` by peft's names, `config` as in adapter_config.json."""

    weights: Mapping[str, Any]
    config: Mapping[str, Any]


class Engine(Protocol):
    """Inference engine. `generate` may be called concurrently; requests are batched continuously."""

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Completion:
        """Sample one completion. Raises `InfrastructureError` if the engine is down, `AgentError` if the prompt exceeds
        the context length, `UnsupportedGrammar` if the grammar is not supported."""
        ...

    async def update_weights(self, version: int, weights: Mapping[str, Any]) -> None:
        """Load new weights between two decoding steps; requests in flight continue with them."""
        ...

    async def pause(self) -> None: ...

    async def resume(self) -> None: ...

    @property
    def version(self) -> int: ...

    @property
    def features(self) -> frozenset[Feature]: ...

    async def close(self) -> None: ...


@runtime_checkable
class SupportsLora(Protocol):
    """An engine that may accept LoRA adapters over its base weights."""

    @property
    def supports_lora(self) -> bool: ...

    @property
    def supports_vision_lora(self) -> bool:
        """Whether adapters may include the vision tower."""
        ...

    async def update_lora(self, version: int, adapter: LoraWeights) -> None:
        """Like `Engine.update_weights`; requests in flight may finish with the adapter that they started with."""
        ...

"""What an engine is: token ids in, token ids out. Invariant: the ids that were served are returned and compared, never assumed.

A `Prompt` is canonical: its ids hold image placeholders *expanded* (one id per image token the model will see); adapters
translate to what their server wants and report what was really served. An engine knows nothing of text or tokenisers.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from deskhand.errors import AgentError

FinishReason = Literal["stop", "length", "aborted"]


@dataclass(frozen=True, slots=True)
class ImageSpan:
    """`count` placeholder tokens starting at index `start` of the prompt stand for the image named `sha256`."""

    start: int
    count: int
    sha256: str


class Checksum:
    """Of an image's pixel values as they were first made; one for all that stand for the image in a process.

    `value` is None while no values were made.
    """

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: int | None = None

    def note(self, values: np.ndarray) -> None:
        """Take the checksum of these values, if they are the first."""
        if self.value is None:
            self.value = _checksum(values)

    def agrees(self, values: np.ndarray) -> bool:
        """Whether these are the values that were first made."""
        return self.value == _checksum(values)


def _checksum(values: np.ndarray) -> int:
    """CRC-32 over one number of each row: its bytes, eight at a time, times odd numbers that differ by place, modulo 2^64.

    So the place of every byte counts, as in a CRC-32 over all of them, at a quarter of its time. `values`: float32[rows, columns].
    """
    words_RW = values.view(np.uint32 if values.shape[1] % 2 else np.uint64)
    return zlib.crc32(np.einsum("rw,w->r", words_RW, _odd_numbers(words_RW.shape[1])).data)


@functools.cache
def _odd_numbers(count: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 1 << 63, count, dtype=np.uint64) * np.uint64(2) + np.uint64(1)


@dataclass(frozen=True, slots=True)
class PreparedImage:
    """An image after the checkpoint's preprocessing; made once per process per content hash.

    `pixel_values`: float32[patches, channels*temporal*patch*patch] as the Qwen-VL towers take it, or what `numpy.asarray` makes
    that of, which is blocking work of milliseconds. `grid_thw`: (t, h, w) in patches.
    `tokens`: placeholders that it takes (`t*h*w / merge_size**2`).
    """

    sha256: str
    pixel_values: Any
    grid_thw: tuple[int, int, int]
    tokens: int
    width: int
    height: int
    checksum: Checksum | None = None
    """Of `pixel_values`, where who makes them notes it; checked where they are put into a batch."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """Ids with expanded placeholders, the spans of the images in order, and the images by hash."""

    token_ids: tuple[int, ...]
    spans: tuple[ImageSpan, ...] = ()
    images: Mapping[str, PreparedImage] | None = None


Feature = Literal["regex", "json_schema", "stop_texts", "top_logprobs"]
"""What an engine may be able to do beyond sampling ids. A request that needs what its engine lacks is refused by name."""


class GrammarRefused(AgentError):
    """The engine cannot sample by this grammar. The message says why."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """What the whole text of a reply must match; the engine offers a stop id only where it does.

    `kind` "regex": `text` is a regular expression as Python writes it; "json_schema": `text` is a JSON Schema as JSON.
    """

    kind: Literal["regex", "json_schema"]
    text: str


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample. `temperature` 0 is greedy.

    Log-probs are those of the softmax over logits divided by `temperature` (by 1 when greedy), after `banned_ids` are removed
    and before `top_p` cuts the tail and `grammar` forbids tokens.
    """

    max_tokens: int = 64
    temperature: float = 1.0
    top_p: float = 1.0
    stop_ids: tuple[int, ...] = ()
    banned_ids: tuple[int, ...] = ()
    """Never sampled (image placeholders always belong here); their logits are -inf before the softmax."""
    seed: int | None = None
    grammar: Grammar | None = None
    """Needs the feature of its kind."""
    stop_texts: tuple[str, ...] = ()
    """Sampling ends with the first token after which the reply's text holds one of these. Needs the feature "stop_texts"."""
    top_logprobs: int = 0
    """So many of the most likely ids are returned for each sampled token. Needs the feature "top_logprobs"."""


@dataclass(frozen=True, slots=True)
class Completion:
    """What was sampled. `token_ids`, `logprobs` and `versions` have equal length; the stop id, when there is one, is included."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    """Version of the weights that sampled each token."""
    finish_reason: FinishReason
    served_ids: tuple[int, ...]
    """The prompt ids that the model really saw, placeholders expanded."""
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...] = ()
    """For each sampled token the most likely (id, log-prob), best first; empty when none were asked for."""
    exact: bool = True
    """Whether ids and log-probs are those that `Sampling` states. What is not exact may be evaluated and is never trained on."""


@dataclass(frozen=True, slots=True)
class LoraWeights:
    """A low-rank adapter as peft writes one: `weights` are torch tensors by peft's names, `config` the values of
    adapter_config.json."""

    weights: Mapping[str, Any]
    config: Mapping[str, Any]


class Engine(Protocol):
    """Inference only. `generate` may be called concurrently; requests are batched continuously."""

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Completion:
        """Sample one completion.

        Raises `InfrastructureError` when the engine is down, `AgentError` when the prompt is longer than it can hold, and
        `GrammarRefused`.
        """
        ...

    async def update_weights(self, version: int, weights: Mapping[str, Any]) -> None:
        """Take new weights between two decoding steps; requests in flight go on with them."""
        ...

    async def pause(self) -> None: ...

    async def resume(self) -> None: ...

    @property
    def version(self) -> int:
        """Version of the weights in use."""
        ...

    @property
    def features(self) -> frozenset[Feature]:
        """What it can do beyond sampling ids."""
        ...

    async def close(self) -> None: ...


@runtime_checkable
class SupportsLora(Protocol):
    """An engine that may hold the base model and take adapters alone."""

    @property
    def takes_adapters(self) -> bool:
        """Whether it does so now."""
        ...

    @property
    def supports_vision_lora(self) -> bool:
        """Whether an adapter may be for the vision tower, too."""
        ...

    async def update_lora(self, version: int, adapter: LoraWeights) -> None:
        """As `Engine.publish`; requests in flight may end with the adapter that they began with, as their versions say."""
        ...

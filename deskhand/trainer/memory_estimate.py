"""Estimate of the memory of a run before it starts.

Used by `recipes.plan`; start with `estimate_memory`. Terms are bytes that may be held at the same time: weights with
gradients and moments, activations of a micro-batch (`trainer.meta_trace` runs the trainer's own code on the meta
device), screenshot features, and the engine. Terms that depend on the episodes have a minimum and a maximum; the
maximum counts. Tests compare the sum with measured peaks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from deskhand.algorithms.base import get_algorithm
from deskhand.config.schema import EngineConfig
from deskhand.config.trainer import PolicyConfig, TrainerConfig
from deskhand.models import architectures
from deskhand.trainer import meta_trace
from deskhand.trainer.objective_settings import ObjectiveSettings
from deskhand.trainer.offload import MAX_SLICE

KIB, MIB, GIB = 2**10, 2**20, 2**30
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
PACKED = (4 + 8 / 64 + 32 / (64 * 256)) / 8
"""Bytes of a 4-bit weight with 8-bit scales per 64 weights and a 32-bit scale per 256 scales (arXiv:2305.14314)."""
CUDA_CONTEXT = int(0.7 * GIB)
"""GPU memory of the driver and of library workspaces."""
CUDA_SLACK = 0.06
"""Allowance for fragmentation of the caching allocator, as a fraction of all tensors. Not measured."""
SAMPLING = 32
"""Bytes per logit while sampling: logits, log-probs and probabilities, some in float64 (`engines.hf.sampler`)."""


@dataclass(frozen=True)
class Workload:
    """Sizes of screenshots in pixels, of episodes in turns, and of steps in episodes, sequences and screenshots."""

    width: int
    height: int
    patches: int
    """Vision patches per screenshot."""
    image_tokens: int
    """Tokens per screenshot."""
    turns: int
    turns_in_row: int
    """Maximum turns in the history."""
    row_tokens: int
    """Tokens of the longest sequence: prompt, screenshots, replies."""
    reply_tokens: int
    """Maximum tokens per reply."""
    step_episodes: int
    step_rows: int
    step_images: int
    prepared_bytes: float = math.inf
    """Maximum size of the cache of preprocessed screenshots."""
    open_steps: int = 1
    """Steps whose episodes run, wait or are trained at the same time."""
    wanted_tokens: int = 0
    """Tokens of the longest sequence without the engine's limit; 0 if equal."""
    judge_s: float = 0.0
    """Mean seconds from the end of an agent to the outcome."""
    played_episodes: float = 0.0
    """Episodes played per step, with those of groups that are not trained; 0 if equal to `step_episodes`."""

    @property
    def num_played(self) -> float:
        return self.played_episodes or self.step_episodes


MemoryLocation = Literal["device", "host"]
WeightSyncMode = Literal["adapters", "whole weights"]


@dataclass(frozen=True)
class MemoryTerm:
    """One term of the sum. `how` explains it; `least` is its minimum in bytes, None if it equals `bytes`."""

    name: str
    bytes: float
    how: str
    least: float | None = None
    place: MemoryLocation = "device"

    @property
    def min_bytes(self) -> float:
        return self.bytes if self.least is None else self.least


@dataclass(frozen=True)
class MemoryEstimate:
    """Sum of memory terms. `available`: bytes of the device, None if unknown."""

    terms: tuple[MemoryTerm, ...]
    available: float | None
    traced: meta_trace.MetaTrace
    tower: meta_trace.VisionMetaTrace
    micro_batch: meta_trace.MicrobatchShape
    published: WeightSyncMode | None = None
    """Weights sent to the engine at every step; None if engine and trainer share them."""
    sent: float = 0.0
    """Bytes sent to the engine at every step."""

    def total(self, place: MemoryLocation = "device") -> float:
        return sum(term.bytes for term in self.terms if term.place == place)

    def least(self, place: MemoryLocation = "device") -> float:
        return sum(term.min_bytes for term in self.terms if term.place == place)

    @property
    def fits(self) -> bool:
        return self.available is None or self.total() <= self.available

    def lines(self) -> Iterator[str]:
        """Yield one line per term and the totals, in GiB or MiB."""
        unit, name = (GIB, "GiB") if self.total() >= GIB else (MIB, "MiB")
        width = max(len(term.name) for term in self.terms)
        for place in ("device", "host"):
            for term in (term for term in self.terms if term.place == place):
                least = f" (at least {term.min_bytes / unit:.2f})" if term.min_bytes < term.bytes else ""
                yield f"{term.name:{width}}  {term.bytes / unit:8.2f} {name}  {term.how}{least}"
            least = f"at least {self.least(place) / unit:.2f}"
            yield f"{f'sum, {place}':{width}}  {self.total(place) / unit:8.2f} {name}  {least}"
        if self.available is not None:
            verdict = f"{100 * self.total() / self.available:.0f} %: {'fits' if self.fits else 'DOES NOT FIT'}"
            yield f"{'of the device':{width}}  {self.available / unit:8.2f} {name}  {verdict}"


def count(number: float) -> str:
    """Format a number of weights in billions or millions."""
    return f"{number / 1e9:.3f}e9" if number >= 1e8 else f"{number / 1e6:.3f}e6"


@dataclass(frozen=True)
class _Traced:
    """Inputs of the terms: config.json, both traces, and bytes per number."""

    values: dict[str, Any]
    lm: meta_trace.MetaTrace
    tower: meta_trace.VisionMetaTrace
    size: int

    @property
    def text(self) -> dict[str, Any]:
        return self.values["text_config"]

    @property
    def weights(self) -> float:
        """Bytes of the weights without LoRA on the vision tower."""
        return self.lm.weights + self.tower.weights

    @property
    def trained(self) -> float:
        return self.lm.trained + self.tower.trained

    @property
    def micro_batch(self) -> float:
        """Peak bytes of a micro-batch in the language model."""
        return self.lm.saved + self.lm.logits + self.lm.passing

    @property
    def token_features(self) -> float:
        """Bytes of the features of an image token: embedding and DeepStack."""
        return (1 + len(meta_trace.deepstack(self.values))) * self.text["hidden_size"] * self.size

    def prepared(self, work: Workload) -> int:
        """Bytes of a preprocessed screenshot: one per channel and pixel."""
        return work.patches * 3 * self.values["vision_config"]["patch_size"] ** 2

    def patch_values(self, work: Workload) -> int:
        """Bytes of the tower's input for one screenshot: float32 values of every patch."""
        return self.prepared(work) * self.values["vision_config"].get("temporal_patch_size", 2) * 4


def estimate_memory(  # noqa: PLR0913
    values: dict[str, Any],
    dtype: str,
    policy: PolicyConfig,
    trainer: TrainerConfig,
    engine: EngineConfig | None,
    work: Workload,
    *,
    requests: int = 1,
    cuda: bool,
    available: float | None = None,
    server: float = 0.0,
    published: WeightSyncMode | None = None,
) -> MemoryEstimate:
    """Estimate the peak memory of training, including an engine in the same process or a server on the same device.

    `values` is the config.json of the model (`models.architectures.values_of`); `requests` are concurrent requests to
    the engine; `server` are the bytes of a server on the device, `published` the weights sent to it at every step.
    """
    tower = meta_trace.trace_vision_tower(values, dtype, work.patches, policy)
    shape = _micro_batch(policy, work)
    longest = min(engine.max_model_len, work.row_tokens) if engine else 1
    prefill = (min(longest, engine.max_num_batched_tokens), longest) if engine else (1, 1)
    lm = meta_trace.trace_language_model(values, dtype, policy, shape, prefill, train_tower=tower.trained > 0)
    made = _Traced(values, lm, tower, BYTES[dtype])
    terms = [
        *_weight_terms(made, policy, trainer, cuda=cuda),
        *_micro_batch_terms(made, shape, policy, work),
        *_image_terms(made, policy.max_vision_patches_per_mb, trainer, work),
    ]
    if trainer.optimizer_offload and cuda:
        beyond = max(0.0, 3 * 4 * min(made.trained, MAX_SLICE) - made.micro_batch)
        terms.append(MemoryTerm("update", beyond, "a part of masters and moments, in excess of a micro-batch"))
    elif trainer.optimizer == "adamw" and cuda:
        beyond = max(0.0, 4 * made.trained - made.micro_batch)
        terms.append(MemoryTerm("update", beyond, "roots of the second moments, in excess of a micro-batch"))
    if engine is not None and not engine.share_weights:
        published = "adapters" if policy.lora is not None and not policy.lora.load_in_4bit else "whole weights"
    sent = {None: 0.0, "adapters": made.trained * made.size, "whole weights": made.weights}[published]
    if engine is not None:
        terms += _engine_terms(made, engine, work, requests, cuda=cuda, sent=sent)
    if cuda:
        tensors = sum(term.bytes for term in terms if term.place == "device")
        how = f"an allowance of {100 * CUDA_SLACK:.0f} % of the above"
        terms.append(MemoryTerm("allocator", CUDA_SLACK * tensors, how, 0.0))
        terms.append(MemoryTerm("CUDA", CUDA_CONTEXT, "context and workspaces"))
    if server:
        terms.append(MemoryTerm("server", server, "device memory of the engine server"))
    if cuda:
        kept = sum(term.min_bytes for term in terms if term.name in ("weights", "masters", "moments"))
        terms.append(MemoryTerm("checkpoint", kept, "copy of weights, masters and moments", place="host"))
    host: MemoryLocation = "host" if cuda else "device"
    if sent and engine is None:
        terms.append(MemoryTerm("weight transfer", sent, f"{published} sent to the server", 0.0, host))
    images = work.open_steps * work.step_images
    prepared = min(images * made.prepared(work), work.prepared_bytes)
    how = f"cache of preprocessed screenshots, {images} x {work.patches} patches"
    terms.append(MemoryTerm("screenshots", prepared, how, place=host))
    return MemoryEstimate(tuple(terms), available, lm, tower, shape, published, sent)


def _micro_batch(policy: PolicyConfig, work: Workload) -> meta_trace.MicrobatchShape:
    """Return the largest micro-batch: the configured tokens, or one longer sequence."""
    tokens = min(max(policy.max_tokens_per_mb, work.row_tokens), work.step_rows * work.row_tokens)
    turns = work.turns_in_row * tokens / work.row_tokens
    sampled = max(1, round(turns * work.reply_tokens))
    return meta_trace.MicrobatchShape(tokens, round(turns * work.image_tokens), sampled)


def _micro_batch_terms(
    made: _Traced, shape: meta_trace.MicrobatchShape, policy: PolicyConfig, work: Workload
) -> Iterator[MemoryTerm]:
    """The minimum is that of whole sequences of maximum length."""
    lm, tokens = made.lm, shape.tokens
    least = tokens // work.row_tokens * work.row_tokens / tokens
    how = f"{tokens} tokens, {lm.saved / tokens / KIB:.0f} KiB each"
    yield MemoryTerm("activations", lm.saved, how, least * lm.saved)
    how = f"{shape.sampled} sampled tokens x {made.text['vocab_size']} ids"
    yield MemoryTerm("logits", lm.logits, how, least * lm.logits)
    yield MemoryTerm("backward peak", lm.passing, "temporary tensors of the backward pass", least * lm.passing)
    if policy.lora is not None and policy.lora.load_in_4bit:
        yield MemoryTerm("unpacking", lm.largest_packable * made.size, "one dequantized 4-bit matrix")


def _weight_terms(made: _Traced, policy: PolicyConfig, trainer: TrainerConfig, *, cuda: bool) -> Iterator[MemoryTerm]:
    """Trained half-precision weights have float32 masters, gradients and moments."""
    adapter, trained, weights, size, lm = policy.lora, made.trained, made.weights, made.size, made.lm
    wide, eight = max(4, size), trainer.optimizer == "adamw_8bit"
    many = count(trained)
    how = f"{count(lm.parameters + made.tower.parameters)} x {size} B"
    if adapter is not None:
        weights, how = weights + made.tower.trained * size, f"{how}, and adapters"
        if adapter.load_in_4bit:
            weights, how = weights - lm.packable * (size - PACKED), f"{how}, but {count(lm.packable)} x {PACKED:.3f} B"
    masters, moments = trained * wide if size < wide else 0, 2 * trained * (1 if eight else wide)
    least_moments = moments / 2 if trainer.optimizer == "muon" else None  # Muon has one, but not for the tables
    own = [
        MemoryTerm("weights", weights, how),
        MemoryTerm("masters", masters, f"{many} trained x {wide} B"),
        MemoryTerm("gradients", trained * wide, f"{many} x {wide} B"),
        MemoryTerm("moments", moments, f"AdamW, 2 x {many} x {1 if eight else wide} B", least_moments),
    ]
    if trainer.optimizer_offload and cuda:
        own = [_pinned(term) if term.name in ("masters", "moments") else term for term in own]
    yield from (term for term in own if term.bytes or term.name != "masters")
    if get_algorithm(trainer.algorithm).uses_critic and trainer.critic.backbone == "separate":
        held = sum(term.bytes for term in own if term.place == "device")
        yield MemoryTerm("critic", held, "a second trained model")
        if held_on_host := sum(term.min_bytes for term in own if term.place == "host"):
            how = "masters and moments of a second trained model"
            yield _pinned(MemoryTerm("critic, offloaded", held_on_host, how))
    if trainer.kl_loss_coef and adapter is None:
        yield MemoryTerm("reference", weights, "the initial model, for the KL penalty")


def _pinned(term: MemoryTerm) -> MemoryTerm:
    """Return the term as pinned host memory (`trainer.offload.host_zeros`)."""
    how = f"{term.how}, pinned: rounded up to powers of two"
    return replace(term, bytes=2 * term.bytes, how=how, least=term.bytes, place="host")


def _image_terms(made: _Traced, max_patches: int, trainer: TrainerConfig, work: Workload) -> Iterator[MemoryTerm]:
    """Features of all screenshots of an update (of the step, if scored first), and the tower's own activations.

    The tower holds its graph during the micro-batches only if all screenshots fit at once.
    """
    scored = trainer.decoupled_loss or trainer.kl_loss_coef or get_algorithm(trainer.algorithm).uses_critic
    images = work.step_images if scored else -(-work.step_images // ObjectiveSettings.of(trainer).num_minibatches)
    tower, learns = made.tower, made.tower.trained > 0
    each = made.token_features * (2 * max(4, made.size) / made.size if learns else 1)
    features = images * work.image_tokens * made.token_features
    kind = ", float32 with gradients" if learns else ""
    how = f"{images} screenshots x {work.image_tokens} tokens, {each / KIB:.0f} KiB each{kind}"
    yield MemoryTerm("image features", images * work.image_tokens * each, how)
    at_once = min(images, max(1, max_patches // work.patches))
    busy = at_once * ((tower.saved + tower.passing if learns else tower.inference) + made.patch_values(work))
    if learns and at_once == images:
        yield MemoryTerm("vision tower", busy, f"{at_once} screenshots, held for the backward pass")
    else:
        beyond = max(0.0, max(busy, features) - made.micro_batch)
        yield MemoryTerm("vision tower", beyond, f"{at_once} screenshots per pass, in excess of a micro-batch")


def server_bytes(values: dict[str, Any], memory: MemoryEstimate, dtype: str, max_tokens: int) -> float:
    """Return the minimum for a server: the weights, and the KV cache of one request of `max_tokens`."""
    numbers = memory.traced.parameters + memory.tower.parameters + max_tokens * numbers_per_token(values)
    return numbers * BYTES[dtype] + architectures.state_shapes(values).bytes(BYTES[dtype])


def numbers_per_token(values: dict[str, Any]) -> int:
    """Return the numbers in the keys and values of a token."""
    text = values["text_config"]
    head = text.get("head_dim") or text["hidden_size"] // text["num_attention_heads"]
    return 2 * len(architectures.attention_layers(values)) * text["num_key_value_heads"] * head


def _engine_terms(
    made: _Traced, engine: EngineConfig, work: Workload, requests: int, *, cuda: bool, sent: float
) -> Iterator[MemoryTerm]:
    """Terms of an engine in this process. On a GPU its KV cache is allocated at once; on a CPU it grows by copying.

    `sent`: bytes of the weights sent to an engine with its own copy.
    """
    per_token, vocabulary = made.size * numbers_per_token(made.values), made.text["vocab_size"]
    longest, slots, most = min(engine.max_model_len, work.row_tokens), engine.max_num_seqs, engine.max_model_len
    if not cuda:
        slots = min(slots, 2 ** math.ceil(math.log2(max(1, requests))))
        most = min(most, longest * 3 // 2)
    capacity = -(-most // 128) * 128
    if not engine.share_weights:
        yield MemoryTerm("engine weights", made.weights, "a second copy")
        yield MemoryTerm("weight transfer", sent, "weights sent to the engine", 0.0)
    cache = slots * capacity * per_token
    how = f"{slots} requests x {capacity} tokens x {per_token / KIB:.0f} KiB"
    yield MemoryTerm("KV cache", cache, how, None if cuda else slots * min(longest, capacity) * per_token)
    if not cuda:
        yield MemoryTerm("KV-cache growth", cache, "the old KV cache while it is copied to a larger one", 0.0)
    if state := architectures.state_shapes(made.values).bytes(made.size):
        yield MemoryTerm("linear-attention states", slots * state, f"{slots} requests x {state / MIB:.1f} MiB")
        if not cuda:
            yield MemoryTerm("growth of states", slots * state, "the old states while they are copied", 0.0)
    cached = engine.prefix_cache_tokens
    yield MemoryTerm("prefix cache", cached * per_token, f"{cached} tokens of finished requests", 0.0)
    if longest > engine.max_num_batched_tokens:
        chunked = 2 * (longest * per_token + state)
        yield MemoryTerm("chunked prompt", chunked, "state of a prompt before and after a chunk", 0.0)
    kept = engine.image_cache_tokens if work.image_tokens else 0
    yield MemoryTerm("engine features", kept * made.token_features, f"{kept} image tokens", 0.0)
    tokens = min(longest, engine.max_num_batched_tokens)
    per_pass = max(1, engine.max_num_batched_tokens // work.image_tokens) if work.image_tokens else 0
    num_images = min(per_pass, work.turns_in_row * slots)
    prefill = max(made.lm.prefill, num_images * (made.tower.inference + made.patch_values(work)))
    yield MemoryTerm("prefill", prefill, f"a pass of {tokens} tokens, or {num_images} screenshots", 0.0)
    yield MemoryTerm("sampling", slots * vocabulary * SAMPLING, f"{slots} x {vocabulary} ids", 0.0)

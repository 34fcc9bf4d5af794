"""How much memory a run takes, said before it starts. Invariant: the total is the sum of the terms that are printed.

Terms are bytes that may all be held at once: weights and what is kept for each of them, what a micro-batch keeps for its backward
pass (`training.tracing` runs the trainer's own code without memory), features of screenshots, and what the engine beside the
trainer holds. A term that depends on what episodes turn out to be has a least beside its most; the most counts. Sources of the
formulas are the modules that they describe; tests compare the sum with measured peaks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from deskhand.algorithms.registry import ALGORITHMS
from deskhand.config.schema import EngineConfig
from deskhand.config.trainer import PolicyConfig, TrainerConfig
from deskhand.trainer import meta_trace

KIB, MIB, GIB = 2**10, 2**20, 2**30
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
PACKED = (4 + 8 / 64 + 32 / (64 * 256)) / 8
"""Bytes of a weight in 4 bits, with a scale of 8 bits for 64 of them and one of 32 bits for 256 scales (arXiv:2305.14314)."""
CUDA_CONTEXT = int(0.7 * GIB)
"""What the driver and the libraries' workspaces take of a GPU before the first tensor."""
CUDA_SLACK = 0.06
"""Of all tensors: an allowance for what the caching allocator holds and cannot hand out. It was not measured."""
SAMPLING = 32
"""Bytes of an id's logit while one is drawn: logits, log-probs and probabilities, some in float64 (`engines.hf.sampler`)."""


@dataclass(frozen=True)
class Workload:
    """What episodes look like to trainer and engine."""

    width: int
    height: int
    """Of a screenshot, in pixels."""
    patches: int
    """Of a prepared screenshot."""
    image_tokens: int
    """Of a screenshot."""
    turns: int
    """Of an episode."""
    turns_in_row: int
    """Most turns that the window shows."""
    row_tokens: int
    """Of the longest row: prompt, screenshots, replies."""
    reply_tokens: int
    """Most tokens of a reply."""
    step_episodes: int
    """Episodes that one step takes."""
    step_rows: int
    """Rows that they are cut into."""
    step_images: int
    """Screenshots that they show."""
    prepared_bytes: float = math.inf
    """The most that is kept of prepared screenshots."""
    wanted_tokens: int = 0
    """What the longest row would have if the engine held more; 0 where that is the same."""


MemoryLocation = Literal["device", "host"]
WeightSyncMode = Literal["adapters", "whole weights"]


@dataclass(frozen=True)
class MemoryTerm:
    """A part of the sum; `how` says what it is made of. `least`: bytes that it takes in any case; None: all of them."""

    name: str
    bytes: float
    how: str
    least: float | None = None
    place: MemoryLocation = "device"

    @property
    def certain(self) -> float:
        return self.bytes if self.least is None else self.least


@dataclass(frozen=True)
class MemoryEstimate:
    """`available`: bytes of the device, None where nothing is known of it."""

    terms: tuple[MemoryTerm, ...]
    available: float | None
    traced: meta_trace.MetaTrace
    tower: meta_trace.VisionMetaTrace
    micro_batch: meta_trace.MicrobatchShape
    published: WeightSyncMode | None = None
    sent: float = 0.0
    """What is published at every step, and its bytes; None where engine and trainer share their weights."""

    def total(self, place: MemoryLocation = "device") -> float:
        return sum(term.bytes for term in self.terms if term.place == place)

    def least(self, place: MemoryLocation = "device") -> float:
        return sum(term.certain for term in self.terms if term.place == place)

    @property
    def fits(self) -> bool:
        return self.available is None or self.total() <= self.available

    def lines(self) -> Iterator[str]:
        """The sum, term by term; in MiB where all of it is less than a GiB."""
        unit, name = (GIB, "GiB") if self.total() >= GIB else (MIB, "MiB")
        width = max(len(term.name) for term in self.terms)
        for place in ("device", "host"):
            for term in (term for term in self.terms if term.place == place):
                least = f" (at least {term.certain / unit:.2f})" if term.certain < term.bytes else ""
                yield f"{term.name:{width}}  {term.bytes / unit:8.2f} {name}  {term.how}{least}"
            yield f"{f'sum, {place}':{width}}  {self.total(place) / unit:8.2f} {name}  at least {self.least(place) / unit:.2f}"
        if self.available is not None:
            verdict = f"{100 * self.total() / self.available:.0f} %: {'fits' if self.fits else 'DOES NOT FIT'}"
            yield f"{'of the device':{width}}  {self.available / unit:8.2f} {name}  {verdict}"


def count(number: float) -> str:
    """So many weights, in thousands of millions or, where they are few, in millions."""
    return f"{number / 1e9:.3f}e9" if number >= 1e8 else f"{number / 1e6:.3f}e6"


@dataclass(frozen=True)
class _Traced:
    """What the terms are made from: config.json, both traces, and the bytes of a number."""

    values: dict[str, Any]
    lm: meta_trace.MetaTrace
    tower: meta_trace.VisionMetaTrace
    size: int

    @property
    def text(self) -> dict[str, Any]:
        return self.values["text_config"]

    @property
    def weights(self) -> float:
        """Bytes, those of adapters on the tower left out."""
        return self.lm.weights + self.tower.weights

    @property
    def trained(self) -> float:
        """Number of weights."""
        return self.lm.trained + self.tower.trained

    @property
    def micro_batch(self) -> float:
        """Bytes of the language model's work at its peak."""
        return self.lm.saved + self.lm.logits + self.lm.passing

    @property
    def token_features(self) -> float:
        """Bytes of an image token's features: the embedding and those of DeepStack."""
        return (1 + len(meta_trace.deepstack(self.values))) * self.text["hidden_size"] * self.size

    def prepared(self, work: Workload) -> int:
        """Bytes that are kept of one screenshot: one for each channel of each pixel that the model sees."""
        return work.patches * 3 * self.values["vision_config"]["patch_size"] ** 2

    def patch_values(self, work: Workload) -> int:
        """Bytes of what the tower takes of one screenshot: float32 values of every patch."""
        return self.prepared(work) * self.values["vision_config"].get("temporal_patch_size", 2) * 4


def estimate_memory(
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
    """Predict the peak of training for an architecture (`models.architectures.values_of`), of an engine in the same process, and
    of a `server` beside it that takes so many bytes. `published`: what a server is sent at every step, None without one."""
    tower = meta_trace.trace_vision_tower(values, dtype, work.patches, policy)
    shape = _micro_batch(policy, work)
    longest = min(engine.max_model_len, work.row_tokens) if engine else 1
    prefill = (min(longest, engine.max_num_batched_tokens), longest) if engine else (1, 1)
    lm = meta_trace.trace_language_model(values, dtype, policy, shape, prefill, tower_learns=tower.trained > 0)
    made = _Traced(values, lm, tower, BYTES[dtype])
    terms = [
        *_weight_terms(made, policy, trainer),
        *_micro_batch_terms(made, shape, policy, work),
        *_image_terms(made, policy.max_vision_patches_per_mb, trainer, work),
    ]
    if trainer.optimizer == "adamw" and cuda:
        beyond = max(0.0, 4 * made.trained - made.micro_batch)
        terms.append(
            MemoryTerm("update", beyond, "roots of the second moments, beyond what a micro-batch takes at another time")
        )
    if engine is not None and not engine.share_weights:
        published = "adapters" if policy.lora is not None and not policy.lora.load_in_4bit else "whole weights"
    sent = {None: 0.0, "adapters": made.trained * made.size, "whole weights": made.weights}[published]
    if engine is not None:
        terms += _engine_terms(made, engine, work, requests, cuda=cuda, sent=sent)
    if cuda:
        tensors = sum(term.bytes for term in terms)
        terms.append(
            MemoryTerm("allocator", CUDA_SLACK * tensors, f"an allowance of {100 * CUDA_SLACK:.0f} % of the above", 0.0)
        )
        terms.append(MemoryTerm("CUDA", CUDA_CONTEXT, "context and workspaces"))
    if server:
        terms.append(MemoryTerm("server", server, "what the engine's server is given of the device"))
    if cuda:
        kept = sum(term.bytes for term in terms if term.name in ("weights", "masters", "moments"))
        terms.append(MemoryTerm("checkpoint", kept, "weights, masters and moments, copied to be written", place="host"))
    if sent and engine is None:
        terms.append(
            MemoryTerm(
                "on their way", sent, f"{published} that are handed to the server", 0.0, "host" if cuda else "device"
            )
        )
    prepared = min(work.step_images * made.prepared(work), work.prepared_bytes)
    how = f"prepared ones that are kept, of {work.step_images} x {work.patches} patches as bytes"
    terms.append(MemoryTerm("screenshots", prepared, how, place="host" if cuda else "device"))
    return MemoryEstimate(tuple(terms), available, lm, tower, shape, published, sent)


def _micro_batch(policy: PolicyConfig, work: Workload) -> meta_trace.MicrobatchShape:
    """The largest: as many tokens as the settings allow, or one row that is longer."""
    tokens = min(max(policy.max_tokens_per_mb, work.row_tokens), work.step_rows * work.row_tokens)
    turns = work.turns_in_row * tokens / work.row_tokens
    return meta_trace.MicrobatchShape(
        tokens, round(turns * work.image_tokens), max(1, round(turns * work.reply_tokens))
    )


def _micro_batch_terms(
    made: _Traced, shape: meta_trace.MicrobatchShape, policy: PolicyConfig, work: Workload
) -> Iterator[MemoryTerm]:
    """The least is that of rows of the longest kind, whole ones."""
    lm = made.lm
    tokens, least = shape.tokens, shape.tokens // work.row_tokens * work.row_tokens / shape.tokens
    yield MemoryTerm(
        "activations", lm.saved, f"{tokens} tokens, {lm.saved / tokens / KIB:.0f} KiB each", least * lm.saved
    )
    how = f"{shape.sampled} sampled tokens x {made.text['vocab_size']} ids"
    yield MemoryTerm("logits", lm.logits, how, least * lm.logits)
    yield MemoryTerm("passing", lm.passing, "more, where the backward pass holds most", least * lm.passing)
    if policy.lora is not None and policy.lora.load_in_4bit:
        yield MemoryTerm(
            "unpacking", lm.largest_packable * made.size, "one matrix of 4 bits at a time, as numbers to compute with"
        )


def _weight_terms(made: _Traced, policy: PolicyConfig, trainer: TrainerConfig) -> Iterator[MemoryTerm]:
    """What is trained in half precision has masters, and gradients and moments in float32."""
    adapter, trained, weights, size, lm = policy.lora, made.trained, made.weights, made.size, made.lm
    wide, eight = max(4, size), trainer.optimizer == "adamw_8bit"
    many = count(trained)
    how = f"{count(lm.parameters + made.tower.parameters)} x {size} B"
    if adapter is not None:
        weights, how = weights + made.tower.trained * size, f"{how}, and adapters"
        if adapter.load_in_4bit:
            weights, how = weights - lm.packable * (size - PACKED), f"{how}, but {count(lm.packable)} x {PACKED:.3f} B"
    own = [
        MemoryTerm("weights", weights, how),
        MemoryTerm("masters", trained * wide if size < wide else 0, f"{many} trained x {wide} B"),
        MemoryTerm("gradients", trained * wide, f"{many} x {wide} B"),
        MemoryTerm("moments", 2 * trained * (1 if eight else wide), f"AdamW, 2 x {many} x {1 if eight else wide} B"),
    ]
    yield from (term for term in own if term.bytes or term.name != "masters")
    if ALGORITHMS[trainer.algorithm].uses_critic and trainer.critic.backbone == "own":
        yield MemoryTerm("critic", sum(term.bytes for term in own), "a second model, trained as the first")
    if trainer.kl_loss_coef and adapter is None:
        yield MemoryTerm("reference", weights, "the untrained model, for the KL penalty")


def _image_terms(made: _Traced, kept_patches: int, trainer: TrainerConfig, work: Workload) -> Iterator[MemoryTerm]:
    """What `training.features` holds: features of all screenshots of an update (of the step, where its rows are scored before the
    first update), and the tower's own work on as many as it takes at a time.

    The tower keeps its graph beside the micro-batches when it takes all at once; otherwise it works before and after them.
    """
    scored = trainer.proximal == "start" or trainer.kl_loss_coef or ALGORITHMS[trainer.algorithm].uses_critic
    images = work.step_images if scored else -(-work.step_images // trainer.num_minibatches)
    tower, learns = made.tower, made.tower.trained > 0
    each = made.token_features * (2 * max(4, made.size) / made.size if learns else 1)
    features = images * work.image_tokens * made.token_features
    kind = ", float32 with gradients" if learns else ""
    how = f"{images} screenshots x {work.image_tokens} tokens, {each / KIB:.0f} KiB each{kind}"
    yield MemoryTerm("image features", images * work.image_tokens * each, how)
    at_once = min(images, max(1, kept_patches // work.patches))
    busy = at_once * ((tower.saved + tower.passing if learns else tower.looking) + made.patch_values(work))
    if learns and at_once == images:
        yield MemoryTerm("tower", busy, f"{at_once} screenshots, kept for the backward pass")
    else:
        beyond = max(0.0, max(busy, features) - made.micro_batch)
        yield MemoryTerm(
            "tower", beyond, f"{at_once} screenshots at a time, beyond what a micro-batch takes at another time"
        )


def server_bytes(values: dict[str, Any], memory: MemoryEstimate, dtype: str, max_tokens: int) -> float:
    """The least that a server can do with: the weights, and keys and values of one request of `max_tokens`."""
    return (memory.traced.parameters + memory.tower.parameters + max_tokens * _numbers_per_token(values)) * BYTES[dtype]


def _numbers_per_token(values: dict[str, Any]) -> int:
    """Of keys and values, in all layers."""
    text = values["text_config"]
    head = text.get("head_dim") or text["hidden_size"] // text["num_attention_heads"]
    return 2 * text["num_hidden_layers"] * text["num_key_value_heads"] * head


def _engine_terms(
    made: _Traced, engine: EngineConfig, work: Workload, requests: int, *, cuda: bool, sent: float
) -> Iterator[MemoryTerm]:
    """On a GPU the engine takes its keys and values whole; elsewhere they grow, by copying them to larger ones.

    `sent`: bytes of what is published to an engine with weights of its own.
    """
    per_token, vocabulary = made.size * _numbers_per_token(made.values), made.text["vocab_size"]
    longest, slots, most = min(engine.max_model_len, work.row_tokens), engine.max_num_seqs, engine.max_model_len
    if not cuda:
        slots = min(slots, 2 ** math.ceil(math.log2(max(1, requests))))
        most = min(most, longest * 3 // 2)
    capacity = -(-most // 128) * 128
    if not engine.share_weights:
        yield MemoryTerm("engine weights", made.weights, "a second copy")
        yield MemoryTerm("on their way", sent, "weights that are handed over", 0.0)
    cache = slots * capacity * per_token
    how = f"{slots} requests x {capacity} tokens x {per_token / KIB:.0f} KiB"
    yield MemoryTerm("keys and values", cache, how, None if cuda else slots * min(longest, capacity) * per_token)
    if not cuda:
        yield MemoryTerm("growing", cache, "the old keys and values while larger ones are filled", 0.0)
    parked = min(engine.prefix_cache_tokens, max(1, requests) * longest)
    yield MemoryTerm("parked", parked * per_token, f"{parked} tokens of finished requests", 0.0)
    kept = min(engine.image_cache_tokens, work.step_images * work.image_tokens)
    yield MemoryTerm("engine's features", kept * made.token_features, f"{kept} image tokens", 0.0)
    tokens = min(longest, engine.max_num_batched_tokens)
    seen = (
        min(max(1, engine.max_num_batched_tokens // work.image_tokens), work.turns_in_row * slots)
        if work.image_tokens
        else 0
    )
    looking = seen * (made.tower.looking + made.patch_values(work))
    yield MemoryTerm("prefill", max(made.lm.prefill, looking), f"a pass of {tokens} tokens, or {seen} screenshots", 0.0)
    yield MemoryTerm("drawing", slots * vocabulary * SAMPLING, f"{slots} x {vocabulary} ids", 0.0)

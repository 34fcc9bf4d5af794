"""The planner's sum against what the allocator says: real steps of small models, of both families, in every mode."""

from __future__ import annotations

import asyncio
import random
import re
from typing import Any

import numpy as np
import pytest
import random_models
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.peak_memory import peak_bytes
from deskhand.config.schema import EngineConfig
from deskhand.config.trainer import CriticConfig, LoraConfig, PolicyConfig, TrainerConfig
from deskhand.engines.hf.decode_batch import DecodeBatch as HfBatch
from deskhand.engines.hf.decode_request import DecodeRequest
from deskhand.models import architectures
from deskhand.recorder.graph import Sequence
from deskhand.trainer.batch import TrainingSample
from deskhand.trainer.memory_estimate import GIB, MemoryEstimate, Workload, estimate_memory, numbers_per_token
from deskhand.trainer.policy import Policy
from deskhand.trainer.throughput_estimate import operations
from deskhand.trainer.trainer import Trainer
from deskhand.types import ImageSpan, PreparedImage, Prompt, Sampling

torch.set_num_threads(1)
TOKENS, TURNS, REPLY, EPISODES = 400, 4, 6, 6
PATCHES, IMAGE_TOKENS = 144, 36
TOLERANCE = 0.10
"""Of the measured peak, on either side."""


def values_of(family: str) -> dict[str, Any]:
    made = random_models.build(family).config.to_dict()
    text = {
        **made["text_config"],
        "hidden_size": 128,
        "intermediate_size": 320,
        "num_hidden_layers": 4,
        "vocab_size": 2000,
    }
    text["num_attention_heads"] = 8
    vision = {**made["vision_config"], "out_hidden_size": 128, "depth": 3}
    if family == "qwen3_vl_moe":
        text |= {**random_models.EXPERTS, "moe_intermediate_size": 160}
    if text.pop("layer_types", None) and family == "qwen3_5":
        text["layer_types"] = ["linear_attention", "linear_attention", "full_attention", "linear_attention"]
    return {**made, "text_config": text, "vision_config": vision}


def work() -> Workload:
    return Workload(96, 96, PATCHES, IMAGE_TOKENS, TURNS, TURNS, TOKENS, REPLY, EPISODES, EPISODES, EPISODES * TURNS)


def small_work() -> Workload:
    """So little that an update takes more than a micro-batch."""
    return Workload(32, 32, 16, 4, 1, 1, 8, 1, 1, 1, 1)


def step_of(model: Any, seed: int = 0) -> tuple[list[TrainingSample], dict[str, PreparedImage]]:
    """Rows as the workload says, each with its own screenshots."""
    chance, samples, images = random.Random(seed), [], {}
    side = int(PATCHES**0.5)
    values = 3 * 2 * model.config.vision_config.patch_size**2
    for episode in range(EPISODES):
        ids = [chance.randrange(8, 140) for _ in range(TOKENS)]
        sampled, spans = [False] * TOKENS, []
        for turn in range(TURNS):
            start, name = turn * TOKENS // TURNS + 5, f"{episode:032x}{turn:032x}"
            pixels = np.random.default_rng([seed, episode, turn]).standard_normal((PATCHES, values)).astype(np.float32)
            images[name] = PreparedImage(name, pixels, (1, side, side), IMAGE_TOKENS, 96, 96)
            spans.append(ImageSpan(start, IMAGE_TOKENS, name))
            ids[start : start + IMAGE_TOKENS] = [model.config.image_token_id] * IMAGE_TOKENS
            first = TOKENS - REPLY if turn == TURNS - 1 else start + IMAGE_TOKENS + 10
            for place in range(first, first + REPLY):
                sampled[place] = True
        logprobs, versions = (-5.0 * mark for mark in sampled), (int(mark) - 1 for mark in sampled)
        row = Sequence(tuple(ids), tuple(sampled), tuple(logprobs), tuple(versions), tuple(spans), ())
        worth = 1.0 if episode % 2 else -1.0
        samples.append(TrainingSample(row, worth, str(episode), reward=worth))
    return samples, images


MODES: dict[str, dict[str, Any]] = {
    "full": {},
    "tower frozen": {"train_vision": False},
    "one row at a time": {"max_tokens_per_mb": 400, "train_vision": False},
    "tower in chunks": {"max_vision_patches_per_mb": 600},
    "adapters": {"lora": LoraConfig(rank=8)},
    "adapters, tower too": {"lora": LoraConfig(rank=8, vision=True)},
    "adapters, 4 bits": {"lora": LoraConfig(rank=8, load_in_4bit=True)},
    "full, layers run again": {"gradient_checkpointing": True, "train_vision": False},
    "adapters, layers run again": {"lora": LoraConfig(rank=8), "gradient_checkpointing": True},
}
TRAINERS: dict[str, dict[str, Any]] = {
    "critic on the policy": {"algorithm": "ppo"},
    "critic of its own": {"algorithm": "ppo", "critic": CriticConfig(backbone="separate")},
    "reference": {"kl_loss_coef": 0.1},
    "two updates": {"num_minibatches": 2, "decoupled_loss": False},
    "operations one by one": {"optimizer": "adamw"},
}


def measured_and_planned(
    family: str, dtype: str, policy_settings: dict[str, Any], trainer_settings: dict[str, Any]
) -> tuple[int, MemoryEstimate]:
    """Bytes of a step, all that is kept included; and the plan of it."""
    values = values_of(family)
    torch.manual_seed(0)
    model = architectures.build(values).to(getattr(torch, dtype))
    policy_config = PolicyConfig(**{"max_tokens_per_mb": 1200, **policy_settings})
    trainer_config = TrainerConfig(learning_rate=1e-4, **trainer_settings)
    trainer = Trainer(Policy(model, policy_config), trainer_config)
    samples, images = step_of(model)
    for _ in range(
        2 if trainer.critic else 1
    ):  # until all moments are there: a critic's trunk learns from its second step on
        trainer.step(samples, images)
    measured = sum(held(trainer).values()) + peak_bytes(lambda: trainer.step(samples, images))
    return measured, estimate_memory(values, dtype, policy_config, trainer_config, None, work(), cuda=False)


def held(trainer: Trainer) -> dict[int, int]:
    """Bytes of all weights, masters and moments, by storage."""
    tensors: list[Any] = []
    policies = [trainer.policy, trainer.policy._reference, trainer.critic.own if trainer.critic else None]
    for policy in filter(None, policies):
        tensors += [*policy.model.parameters(), *policy.model.buffers(), *policy.parameters().values()]
        states = [
            getattr(part.weight, "quant_state", None) for part in policy.model.modules() if hasattr(part, "weight")
        ]
        tensors += [state.absmax for state in states if state is not None]
    for _, parameters, optimizer in trainer.parts():
        tensors += parameters.values()
        tensors += [value for state in optimizer.state.values() for value in state.values()]
    return {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}


def check(measured: int, made: MemoryEstimate) -> None:
    shown = next(term.bytes for term in made.terms if term.name == "screenshots")
    assert made.total() == made.least(), "whole rows leave nothing open"
    assert made.total() - shown == pytest.approx(measured, rel=TOLERANCE), "\n".join(made.lines())


@pytest.mark.parametrize(
    ("family", "dtype"), [("qwen3_vl", "float32"), ("qwen3_vl", "bfloat16"), ("qwen2_5_vl", "float32")]
)
@pytest.mark.parametrize("mode", MODES)
def test_the_sum_is_what_a_real_step_takes(family: str, mode: str, dtype: str) -> None:
    if "4 bits" in mode:
        pytest.importorskip("bitsandbytes")
    check(*measured_and_planned(family, dtype, MODES[mode], {}))


@pytest.mark.parametrize(
    ("family", "mode", "dtype"),
    [
        ("qwen3_5", "full", "float32"),
        ("qwen3_5", "adapters, layers run again", "bfloat16"),
        ("qwen3_vl_moe", "full", "float32"),
    ],
)
def test_the_sum_is_what_a_step_with_linear_attention_or_experts_takes(family: str, mode: str, dtype: str) -> None:
    check(*measured_and_planned(family, dtype, MODES[mode], {}))


@pytest.mark.parametrize("kind", TRAINERS)
def test_the_sum_is_what_other_algorithms_and_optimizers_take(kind: str) -> None:
    check(*measured_and_planned("qwen3_vl", "bfloat16", {"train_vision": False}, TRAINERS[kind]))


def test_an_update_by_whole_lists_of_tensors_needs_room_for_the_roots_of_the_moments() -> None:
    """As `adamw` does it on a GPU, with all tensors at once."""
    values = values_of("qwen3_vl")
    parameters = [parameter.requires_grad_() for parameter in architectures.build(values).parameters()]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer = torch.optim.AdamW(parameters, foreach=True)
    optimizer.step()
    measured = peak_bytes(optimizer.step)
    made = estimate_memory(
        values, "float32", PolicyConfig(), TrainerConfig(optimizer="adamw"), None, small_work(), cuda=True
    )
    room = sum(term.bytes for term in made.terms if term.name in ("update", "activations", "logits", "backward peak"))
    assert room == pytest.approx(measured, rel=TOLERANCE)


def test_rows_that_leave_room_in_a_micro_batch_give_a_least_and_a_most() -> None:
    """Rows of 400 tokens in micro-batches of 1500: at least 3 rows; shorter rows would fill it."""
    measured, made = measured_and_planned("qwen3_vl", "float32", {"max_tokens_per_mb": 1500}, {})
    shown = next(term.bytes for term in made.terms if term.name == "screenshots")
    assert made.least() - shown == pytest.approx(measured, rel=TOLERANCE), "\n".join(made.lines())
    assert made.total() > made.least()
    assert "at least" in next(line for line in made.lines() if line.startswith("activations"))


def test_the_total_is_the_sum_of_what_is_printed() -> None:
    made = estimate_memory(
        values_of("qwen3_vl"), "bfloat16", PolicyConfig(), TrainerConfig(), None, work(), cuda=True, available=GIB
    )
    printed = [re.match(r"(.+?)  +([\d.]+) MiB", line) for line in made.lines()]
    found = [(each.group(1), float(each.group(2))) for each in printed if each]
    for place in ("device", "host"):
        names = [term.name for term in made.terms if term.place == place]
        parts = [value for name, value in found if name in names]
        assert len(parts) == len(names)
        assert sum(parts) == pytest.approx(dict(found)[f"sum, {place}"], abs=0.01 * len(parts))


BILLIONS = {
    "Qwen/Qwen3-VL-30B-A3B-Instruct": 31.07,
    "Qwen/Qwen2.5-VL-3B-Instruct": 3.75,
    "Qwen/Qwen3-VL-4B-Instruct": 4.44,
    "Qwen/Qwen3.5-4B": 4.54,
}


@pytest.mark.parametrize("source", [name for name in architectures.PUBLISHED if "Thinking" not in name])
def test_published_architectures_have_the_weights_that_are_published(source: str) -> None:
    """As the checkpoints' pages say; and the trace counts what the model itself has."""
    with torch.device("meta"):
        model = architectures.build(architectures.values_of(source))
    count = sum(parameter.numel() for parameter in model.parameters())
    assert round(count / 1e9, 2) == BILLIONS[source]
    made = estimate_memory(
        architectures.values_of(source), "bfloat16", PolicyConfig(), TrainerConfig(), None, work(), cuda=False
    )
    assert made.traced.parameters + made.tower.parameters == count


def request(model: Any, length: int, reply: int, number: int) -> DecodeRequest:
    """A prompt with one screenshot of its own."""
    side, values = int(PATCHES**0.5), 3 * 2 * model.config.vision_config.patch_size**2
    pixels, name = np.zeros((PATCHES, values), dtype=np.float32), f"{number:064x}"
    ids = [9 + number] * 4 + [model.config.image_token_id] * IMAGE_TOKENS
    ids += [8] * (length - len(ids))
    images = {name: PreparedImage(name, pixels, (1, side, side), IMAGE_TOKENS, 96, 96)}
    prompt = Prompt(tuple(ids), (ImageSpan(4, IMAGE_TOKENS, name),), images)
    future = asyncio.new_event_loop().create_future()
    return DecodeRequest(prompt, Sampling(max_tokens=reply), reply, future, random.Random(0))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["qwen3_vl", "qwen2_5_vl", "qwen3_5"])
def test_an_engine_takes_between_the_least_and_the_most_of_its_terms(family: str, dtype: str) -> None:
    """Four requests at a time, their prompts ever longer, up to the longest row; finished ones are kept."""
    values = values_of(family)
    model = architectures.build(values).to(getattr(torch, dtype))
    sizes = {
        "max_num_seqs": 4,
        "max_model_len": 600,
        "max_num_batched_tokens": 800,
        "prefix_cache_tokens": 1600,
        "image_cache_tokens": 20 * IMAGE_TOKENS,
    }
    engine = EngineConfig(**sizes, share_weights=True)  # type: ignore[arg-type]
    made = estimate_memory(
        values, dtype, PolicyConfig(train_vision=False), TrainerConfig(), engine, work(), requests=4, cuda=False
    )
    batch = HfBatch(model, engine)

    def play() -> None:
        with torch.inference_mode():
            for turn, length in enumerate((120, 200, 300, TOKENS - REPLY)):
                waiting = [request(model, length, REPLY, 4 * turn + number) for number in range(4)]
                while waiting or batch.requests:
                    waiting = waiting[batch.admit(waiting, 0) :]
                    batch.finished(0)
                    if batch.requests:
                        batch.step(0)

    names = (
        "KV cache",
        "KV-cache growth",
        "linear-attention states",
        "growth of states",
        "prefix cache",
        "engine features",
        "prefill",
        "sampling",
    )
    terms = [term for term in made.terms if term.name in names]
    measured = peak_bytes(play)
    least, most = sum(term.min_bytes for term in terms), sum(term.bytes for term in terms)
    assert least <= measured <= most * (1 + TOLERANCE), (least, measured, most, "\n".join(made.lines()))
    assert batch.stats.reused_tokens == 0


def test_layers_with_linear_attention_take_memory_per_request_and_not_per_token() -> None:
    values = architectures.QWEN35_4B
    assert numbers_per_token(architectures.QWEN3_VL_4B) == 2 * 36 * 8 * 128
    assert numbers_per_token(values) == 2 * 8 * 4 * 256
    assert architectures.state_shapes(values).bytes(2) == 24 * (8192 * 4 * 2 + 32 * 128 * 128 * 4)


def grouped(left: torch.Size, right: torch.Size, *_: Any, **named: Any) -> int:
    """Operations of a product by experts: of tokens with the matrix of each, or the gradient of these matrices."""
    return 2 * left[0] * left[1] * right[-1]


def test_the_operations_are_those_that_torch_counts() -> None:
    """Attention apart: torch's counter does not know the processor's kernel."""
    modes: list[tuple[str, dict[str, Any]]] = [
        ("qwen3_vl", {"train_vision": False}),
        ("qwen3_vl", {"lora": LoraConfig(rank=8)}),
        ("qwen3_vl_moe", {"train_vision": False}),
    ]
    for family, settings in modes:
        values = values_of(family)
        model, config = architectures.build(values), PolicyConfig(max_tokens_per_mb=400, **settings)
        trainer = Trainer(Policy(model, config), TrainerConfig(learning_rate=1e-4))
        samples, images = step_of(model)
        with FlopCounterMode(display=False, custom_mapping={torch.ops.aten._grouped_mm: grouped}) as counter:
            trainer.step(samples, images)
        made = estimate_memory(values, "float32", config, TrainerConfig(), None, work(), cuda=False)
        planned = operations(values, made, work(), adapters="lora" in settings)
        assert planned.total - planned.attention == pytest.approx(counter.get_total_flops(), rel=0.1)

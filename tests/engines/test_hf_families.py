"""Families from the engine to the trainer and back: adapters, resumed runs, experts, and prefixes with states."""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Sequence as Rows
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from random_models import Conversation, build, save_checkpoint, wrap
from safetensors.numpy import load_file
from test_hf_exactness import BANNED, converse, mismatch, plain_differences

from deskhand.config.schema import EngineConfig
from deskhand.config.trainer import LoraConfig, PolicyConfig, TrainerConfig
from deskhand.engines.hf import HfEngine
from deskhand.engines.vllm import launch_vllm
from deskhand.errors import ConfigError
from deskhand.models.load import load
from deskhand.recorder.graph import Call, CallGraph
from deskhand.trainer.batch import TrainingSample
from deskhand.trainer.checkpoint import CheckpointManager
from deskhand.trainer.policy import Policy
from deskhand.trainer.trainer import Trainer
from deskhand.trainer.weight_sync import push_weights
from deskhand.types import Prompt, Sampling

FAMILY = "qwen3_5"
LINEAR = ("in_proj_qkv", "in_proj_z", "in_proj_a", "out_proj", "q_proj", "down_proj")
LORA = LoraConfig(rank=4, alpha=8, target_modules=LINEAR, vision=True)
ATTENTION = LoraConfig(rank=4, alpha=8, target_modules=("q_proj", "k_proj", "v_proj", "o_proj"), vision=True)
CONFIG = TrainerConfig(learning_rate=1e-2, ppo_epochs=2, num_minibatches=2, weight_decay=0.01)
Played = tuple[list[TrainingSample], dict[str, Any]]


async def play(engine: HfEngine, seeds: Rows[int]) -> Played:
    """Episodes that are recorded as calls and merged as for training, and their images."""
    samples, images = [], {}
    for calls in await asyncio.gather(*(converse(engine, seed, 5, 1.0) for seed in seeds)):
        graph = CallGraph()
        for index, (prompt, sampling, done) in enumerate(calls):
            parent = graph.parent_of(prompt.token_ids, prompt.spans, sampling.temperature)
            graph.add(Call(str(index), parent, prompt.token_ids, prompt.spans, done, sampling.temperature))
            images.update(prompt.images or {})
        worth = 1.0 if len(samples) % 4 else -1.0
        samples += [TrainingSample(row, worth, str(len(samples)), reward=worth) for row in graph.sequences()]
    return samples, images


def gap(policy: Policy, played: Played) -> tuple[float, float]:
    """Largest difference of the trainer's log-probs from the engine's, and the KL estimate."""
    rows = [sample.sequence for sample in played[0]]
    found = policy.logprobs(rows, played[1])
    stated = [np.array(row.logprobs)[list(row.loss_mask)] for row in rows]
    return mismatch(np.concatenate([new - old for new, old in zip(found, stated, strict=True)], dtype=np.float64))


@pytest.mark.parametrize(
    ("family", "lora"),
    [
        ("qwen3_vl", LoraConfig(rank=4, alpha=8, vision=True)),
        ("qwen3_vl_moe", None),
        ("qwen3_vl_moe", ATTENTION),
        ("qwen2_5_vl", LoraConfig(rank=4, alpha=8, vision=True)),
        ("qwen3_5", None),
        ("qwen3_5", LORA),
        ("qwen3_5_moe", LORA),
    ],
)
async def test_the_engine_samples_what_the_trainer_scores_after_every_update(
    family: str, lora: LoraConfig | None
) -> None:
    """Two versions, each published to an engine with tensors of its own."""
    torch.set_num_threads(1)
    trainer = Trainer(Policy(build(family), PolicyConfig(lora=lora), BANNED), CONFIG)
    engine = HfEngine(wrap(family), EngineConfig(max_num_seqs=3))
    try:
        for version in range(2):
            played = await play(engine, range(2 * version, 2 * version + 2))
            largest, divergence = gap(trainer.policy, played)
            how = "full weights" if lora is None else "LoRA"
            print(f"{family}, {how}, version {version}: max {largest:.2e} nat, mean KL estimate {divergence:.2e}")
            assert largest < 1e-3
            assert divergence < 1e-6
            trainer.step(*played)
            assert gap(trainer.policy, played)[0] > 1e-2, "the step changed nothing"
            await push_weights(trainer.policy, engine, version + 1)
        assert engine.stats.reused_tokens > 200
    finally:
        await engine.close()
    states = [name for name, tensor in trainer.policy.parameters().items() if ".linear_attn." in name]
    expected = 0 if "qwen3_5" not in family else 9 if lora is None else 8
    assert len({name.rpartition("linear_attn.")[2] for name in states}) == expected


def prompt(*parts: Conversation) -> Prompt:
    """One prompt of the tokens and images of all parts."""
    ids, spans, images = (), (), {}
    for part in parts:
        spans += tuple(replace(span, start=span.start + len(ids)) for span in part.spans)
        ids, images = ids + part.token_ids, images | part.images
    return Prompt(ids, spans, images)


def talk(seed: int) -> Conversation:
    made = Conversation(seed)
    made.observe()
    made.observe()
    return made


async def test_a_prefix_is_reused_whole_or_not_at_all() -> None:
    loaded = wrap(FAMILY)
    engine = HfEngine(loaded, EngineConfig(max_num_seqs=2))
    sampling, calls = Sampling(6, banned_ids=BANNED, seed=1), []

    async def ask(text: Prompt, seed: int = 1) -> int:
        """Tokens that are reused."""
        before = engine.stats.reused_tokens
        calls.append((text, sampling, await engine.generate(text, replace(sampling, seed=seed))))
        return engine.stats.reused_tokens - before

    try:
        first = prompt(talk(1), talk(2))
        assert await ask(first) == 0
        assert await ask(prompt(talk(1), talk(3))) == 0, "only a part of the entry"
        assert await ask(first, seed=2) == 0, "the entry is longer than the prompt"
        ended = Prompt(first.token_ids + calls[0][2].token_ids, first.spans, first.images)
        more = talk(4)
        spans = tuple(replace(span, start=span.start + len(ended.token_ids)) for span in more.spans)
        following = Prompt(
            ended.token_ids + more.token_ids, ended.spans + spans, {**(ended.images or {}), **more.images}
        )
        assert await ask(following) == len(ended.token_ids) - 1
    finally:
        await engine.close()
    assert mismatch(plain_differences(loaded, [calls]))[0] < 1e-3


async def test_states_count_in_the_prefix_cache() -> None:
    """As tokens with keys and values of the same size: a cache with room for the tokens alone keeps no entry."""
    text = prompt(talk(1))
    states = math.ceil(3 * ((2 * 2 * 16 + 4 * 8) * 4 * 4 + 4 * 16 * 8 * 4) / (2 * 2 * 32 * 4))
    for room, kept in ((len(text.token_ids) + 2 + states, True), (len(text.token_ids) + 1 + states, False)):
        engine = HfEngine(wrap(FAMILY), EngineConfig(prefix_cache_tokens=room))
        try:
            await engine.generate(text, Sampling(3, banned_ids=BANNED, seed=1))
            assert engine._batch._prefixes.tokens == kept * room
        finally:
            await engine.close()


@pytest.mark.parametrize(
    ("family", "mode"),
    [(FAMILY, {}), (FAMILY, {"lora": LORA, "gradient_checkpointing": True}), ("qwen3_vl_moe", {})],
)
async def test_two_steps_resume_two_steps_equal_four_and_load_as_a_checkpoint(
    tmp_path: Path, family: str, mode: Any
) -> None:
    torch.set_num_threads(1)
    save_checkpoint(tmp_path / "assets", family)
    engine = HfEngine(wrap(family))
    try:
        played = await play(engine, range(1))
    finally:
        await engine.close()
    straight, first, second = (Trainer(Policy(build(family), PolicyConfig(**mode), BANNED), CONFIG) for _ in range(3))
    for _ in range(4):
        straight.step(*played)
    for _ in range(2):
        first.step(*played)
    saved = CheckpointManager(tmp_path / "run").save(first, tmp_path / "assets")
    assert CheckpointManager(tmp_path / "run").load(second) is not None
    for _ in range(2):
        second.step(*played)
    expected, found = straight.policy.snapshot(), second.policy.snapshot()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    experts = [
        weights.shape for name, weights in load_file(saved / "model.safetensors").items() if ".1.mlp.exp" in name
    ]
    as_published = [(6, 48, 64), (6, 64, 96)]  # inputs before outputs
    assert experts == (as_published if family == "qwen3_vl_moe" else [])
    loaded = Policy(load(str(saved)).model, banned_ids=BANNED)
    rows = [sample.sequence for sample in played[0]]
    for ours, theirs in zip(first.policy.logprobs(rows, played[1]), loaded.logprobs(rows, played[1]), strict=True):
        assert np.abs(ours - theirs).max() < 1e-4


def test_vllm_on_a_processor_needs_bfloat16(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, FAMILY)
    with pytest.raises(ConfigError, match=r"^dtype float32: vLLM serves qwen3_5 on a CPU in bfloat16 only; set dtype"):
        launch_vllm(tmp_path, None, sys.executable, tmp_path)

"""Faults of engine and trainer for row 32: steps of a small random model that really go wrong.

A `Pair` is an engine and a trainer with the same weights. Each fault returns the metrics of its steps, which the row
judges together with those of healthy steps. Used by `fault_rows.alerts`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.fault_rows.parts import SUPPORT
from deskhand.config.trainer import CriticConfig, TrainerConfig
from deskhand.engines.hf import HfEngine, decode_batch
from deskhand.models import forward
from deskhand.recorder.graph import Call, CallGraph
from deskhand.trainer.batch import TrainingSample
from deskhand.trainer.policy import Policy
from deskhand.trainer.trainer import Trainer
from deskhand.trainer.weight_sync import push_weights
from deskhand.types import PreparedImage, Prompt, Sampling

assert SUPPORT.is_dir()  # random_models is there
Metrics = dict[str, Any]
Batch = tuple[list[TrainingSample], dict[str, PreparedImage]]
REPLIES, TOKENS = 4, 4
_SHARPER = 2.0
"""Usual factor of the logits, so that the entropy can rise several times."""


class Pair:
    """Engine and trainer with equal weights. Every second prompt shows an image; rewards alternate. The logits are
    multiplied by `factor`."""

    def __init__(self, factor: float = _SHARPER, **settings: Any) -> None:
        from random_models import IMAGE, wrap

        models = [wrap("qwen3_vl") for _ in range(2)]
        with torch.no_grad():
            for loaded in models:
                loaded.model.model.language_model.norm.weight.mul_(factor)
        self.banned, self._seed = (IMAGE,), 0
        self.engine = HfEngine(models[0])
        config = TrainerConfig(**{"learning_rate": 1e-4, **settings})
        self.trainer = Trainer(Policy(models[1].model, banned_ids=self.banned), config)

    async def sample(self, scale: float = 1.0) -> Batch:
        """Sample replies; `scale` multiplies their advantages."""
        from random_models import Conversation

        samples, images = list[TrainingSample](), dict[str, PreparedImage]()
        for place in range(REPLIES):
            self._seed += 1
            start = 10 + self._seed % 50
            prompt = Conversation(self._seed).observe() if place % 2 else Prompt(tuple(range(start, start + 20)))
            done = await self.engine.generate(prompt, Sampling(TOKENS, banned_ids=self.banned, seed=self._seed))
            row = CallGraph([Call("0", None, prompt.token_ids, prompt.spans, done)]).sequences()[0]
            reward = place // 2 % 2
            advantage = scale if reward else -scale
            samples.append(TrainingSample(row, advantage, f"{self._seed}", reward=float(reward)))
            images |= prompt.images or {}
        return samples, images

    def train(self, *batches: Batch) -> Metrics:
        """Train one step on the batches."""
        samples = [sample for batch, _ in batches for sample in batch]
        images = {name: shown for _, batch in batches for name, shown in batch.items()}
        done = self.trainer.step(samples, images).metrics()
        return {name: value for name, value in done.items() if value is not None}

    async def steps(self, count: int, scale: float = 1.0, publish: bool = True) -> list[Metrics]:
        """Sample, train and publish the weights `count` times."""
        found = list[Metrics]()
        for _ in range(count):
            found.append(self.train(await self.sample(scale)))
            if publish:
                await push_weights(self.trainer.policy, self.engine, self.trainer.version)
        return found


@dataclass(frozen=True)
class StepFault:
    """`run` returns the metrics of steps with the fault, which raise `rules`. `backend` and `dtype` choose the
    bounds."""

    what: str
    rules: tuple[str, ...]
    run: Callable[[], Awaitable[list[Metrics]]]
    backend: str = "hf"
    dtype: str = "float32"


@contextmanager
def _engine_rounds(digits: float, name: str) -> Iterator[None]:
    """Round image features or hidden states of the engine to multiples of 1 / `digits`."""
    original = getattr(decode_batch, name)

    def rounded(*given: Any, **named: Any) -> Any:
        found = original(*given, **named)
        if isinstance(found, tuple):
            return tuple((layer * digits).round() / digits for layer in found)
        return (found * digits).round() / digits

    assert original in (forward.encode_images, decode_batch.forward_decoder)
    with patch.object(decode_batch, name, rounded):
        yield


def _rounding(digits: float, name: str) -> Callable[[], Awaitable[list[Metrics]]]:
    async def run() -> list[Metrics]:
        with _engine_rounds(digits, name):
            return await Pair().steps(1)

    return run


def _training(
    count: int, scale: float = 1.0, publish: bool = True, **settings: Any
) -> Callable[[], Awaitable[list[Metrics]]]:
    async def run() -> list[Metrics]:
        return await Pair(**settings).steps(count, scale, publish)

    return run


async def _same_replies_again() -> list[Metrics]:
    pair = Pair(1.0, learning_rate=1e-3)
    samples, images = await pair.sample()
    samples = [replace(sample, advantage=1.0) for sample in samples]
    return [pair.train((samples, images)) for _ in range(4)]


async def _old_replay() -> list[Metrics]:
    pair = Pair(1.0, learning_rate=1e-3)
    samples, images = await pair.sample()
    old = [replace(sample, advantage=1.0, is_replayed=True) for sample in samples]
    found = list[Metrics]()
    for _ in range(4):
        found.append(pair.train(await pair.sample(1e-3), (old, images)))
        await push_weights(pair.trainer.policy, pair.engine, pair.trainer.version)
    return found


async def _lost_norm() -> list[Metrics]:
    pair = Pair()
    with torch.no_grad():
        pair.trainer.policy.model.model.language_model.norm.weight.zero_()
    await push_weights(pair.trainer.policy, pair.engine, 1)
    return await pair.steps(1)


STEP_FAULTS = (
    StepFault("the engine rounds image features", ("engine_kl_images",), _rounding(1, "encode_images")),
    StepFault("the engine rounds hidden states", ("engine_kl_text",), _rounding(1, "forward_decoder")),
    StepFault(
        "the engine changes to a coarser number format", ("engine_kl_text_jump", "engine_kl_images_jump"),
        _rounding(4, "forward_decoder"), "vllm", "bfloat16",
    ),
    StepFault(
        "updates are not published", ("approx_kl", "importance_weight"),
        _training(3, publish=False, learning_rate=1e-2),
    ),
    StepFault("the same replies are trained in every step", ("masked",), _same_replies_again),
    StepFault("replay does not drop old episodes", ("replay_masked",), _old_replay),
    StepFault("learning rate 0.1 in six passes", ("clip_fraction",), _training(1, learning_rate=0.1, ppo_epochs=6)),
    StepFault(
        "learning rate 0.03 in four passes", ("ratio",), _training(1, factor=1.0, learning_rate=0.03, ppo_epochs=4)
    ),
    StepFault("learning rate 10", ("entropy_low",), _training(3, learning_rate=10.0)),
    StepFault("an update loses the final norm", ("entropy_spike",), _lost_norm),
    StepFault("advantages are 10,000 times too large", ("gradient_spike",), _training(1, 1e4)),
    StepFault("advantages are divided by almost 0", ("gradient_overflow",), _training(1, 1e38)),
    StepFault("advantages are all 0", ("no_update",), _training(1, 0.0)),
    StepFault(
        "the critic's learning rate is 10", ("critic",),
        _training(6, algorithm="ppo", critic=CriticConfig(learning_rate=10.0)),
    ),
)  # fmt: skip

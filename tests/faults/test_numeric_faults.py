"""Fault class 9: an engine that computes images differently from the trainer is detected, apart from text."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from random_models import IMAGE, Conversation, wrap

from deskhand.config.loop import HealthConfig
from deskhand.engines.hf import HfEngine
from deskhand.engines.hf import decode_batch as engine_batch
from deskhand.models import forward
from deskhand.recipes.health import find_alerts, resolve_bounds
from deskhand.recorder.graph import Call, CallGraph
from deskhand.trainer.batch import TrainingSample
from deskhand.trainer.policy import Policy
from deskhand.trainer.trainer import Trainer
from deskhand.types import PreparedImage, Prompt, Sampling

torch.set_num_threads(1)


async def alerts() -> list[str]:
    """Alerts on engine and trainer after a step on four replies to images and four to text, with equal advantages."""
    model, rows, images = wrap("qwen3_vl"), list[TrainingSample](), dict[str, PreparedImage]()
    engine = HfEngine(model)
    try:
        for seed in range(8):
            prompt = Conversation(seed).observe() if seed % 2 else Prompt(tuple(range(10 + seed, 30 + seed)))
            done = await engine.generate(prompt, Sampling(12, banned_ids=(IMAGE,), seed=seed))
            graph = CallGraph([Call("0", None, prompt.token_ids, prompt.spans, done)])
            rows.append(TrainingSample(graph.sequences()[0], 1.0 if seed // 2 % 2 else -1.0, str(seed)))
            images |= prompt.images or {}
    finally:
        await engine.close()
    done = Trainer(Policy(model.model, banned_ids=(IMAGE,))).step(rows, images)
    raised = find_alerts(done.metrics(), [], resolve_bounds(HealthConfig(), "hf", "float32", "token"))
    assert done.engine_kl is not None
    return [alert.metric for alert in raised if alert.metric.startswith("train/engine_kl")]


def coarse(model: Any, *given: Any) -> tuple[torch.Tensor, ...]:
    """Features as whole numbers, as a careless number format would leave them."""
    return tuple(layer.round() for layer in forward.encode_images(model, *given))


async def test_without_a_fault_there_is_no_alert() -> None:
    assert await alerts() == []


async def test_9_coarse_image_features_are_detected_apart_from_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_batch, "encode_images", coarse)
    assert await alerts() == ["train/engine_kl_images"]


async def test_9_coarse_log_probs_are_detected_in_both(monkeypatch: pytest.MonkeyPatch) -> None:
    decode = engine_batch.forward_decoder
    monkeypatch.setattr(engine_batch, "forward_decoder", lambda *given, **named: decode(*given, **named).round())
    assert await alerts() == ["train/engine_kl_text", "train/engine_kl_images"]

"""Adapters alone against a real vLLM: what it samples with each of them is what the trainer scores, and nothing else is
sent."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch
from full import FULL
from recording import png
from vllm_serving import Served, serving

from deskhand.config.trainer import LoraConfig, PolicyConfig
from deskhand.models.load import TINY_FOLDER, load
from deskhand.recorder.graph import Call, CallGraph
from deskhand.recorder.messages import ImagePart, message
from deskhand.recorder.renderer import ChatRenderer
from deskhand.trainer.checkpoint import CheckpointManager
from deskhand.trainer.policy import Policy
from deskhand.trainer.trainer import Trainer
from deskhand.trainer.weight_sync import push_weights
from deskhand.types import Completion, Prompt, Sampling

BAR = 1e-2
RANK, REPLY = 4, 120


def move(policy: Policy, seed: int) -> None:
    """Other adapters."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.parameters().values():
            parameter.normal_(0, 0.05)


def without_tower(policy: Policy) -> Policy:
    """The same with the tower as it was."""
    plain = policy.copy(frozen=True)
    with torch.no_grad():
        for name, parameter in plain.model.named_parameters():
            if ".visual." in name and ".lora_B." in name:
                parameter.zero_()
    return plain


def gap(policy: Policy, served: Served, prompt: Prompt, done: Completion) -> float:
    """Largest difference between the trainer's log-probs and vLLM's."""
    graph = CallGraph([Call("0", None, prompt.token_ids, prompt.spans, done)])
    return float(np.abs(policy.logprobs(graph.sequences(), served.images)[0] - np.array(done.logprobs)).max())


def sent(folder: Path) -> int:
    """Bytes that were published last."""
    return sum(file.stat().st_size for file in folder.glob("version-3/*.safetensors"))


@pytest.mark.parametrize("tower", [False, True] if FULL else [True])
async def test_each_version_is_an_adapter_of_its_own_over_the_weights_that_vllm_has(
    python: Path, tmp_path: Path, tower: bool
) -> None:
    """The picture is known to the server from the version before: with adapters on the tower it is looked at anew. That
    server reads a run's checkpoint, with the trainer's own tensors beside the model's."""
    torch.set_num_threads(1)
    model = load("tiny")
    config = PolicyConfig(lora=LoraConfig(rank=RANK, alpha=8, vision=tower))
    policy = Policy(model.model, config, ChatRenderer(model.tokenizer).banned_ids)
    checkpoint = CheckpointManager(tmp_path / "run").save(Trainer(policy), TINY_FOLDER) if tower else TINY_FOLDER
    served = serving(python, tmp_path, "float32", adapter_rank=RANK, adapter_tower=tower, checkpoint=checkpoint)
    image = served.images.add(png(3, 256, 192))
    prompt = served.renderer.render((message("user", [ImagePart(image.sha256), "Click the blue box"]),), served.images)

    def asking(tokens: int) -> Sampling:
        return Sampling(tokens, banned_ids=served.renderer.banned_ids, seed=1)

    try:
        await served.engine.start()
        assert served.engine.supports_lora
        assert served.engine.supports_vision_lora == tower
        plain = await served.generate(prompt, asking(8))
        assert plain.versions == (0,) * 8
        kept: list[tuple[int, Policy, asyncio.Task[Completion]]] = []
        for version in (1, 2, 3):
            if len(kept) > 1:  # the server holds two: one that is older still would be asked again with the newest
                await kept[-2][2]
            if kept and kept[-1][2].done():
                kept[-1] = (*kept[-1][:2], await served.in_flight(prompt, asking(REPLY)))
            move(policy, version)
            await push_weights(policy, served.engine, version)
            kept.append((version, policy.copy(frozen=True), await served.in_flight(prompt, asking(REPLY))))
        others = [policy.copy(frozen=True), *(scorer for _, scorer, _ in kept[:-1])]
        for (version, scorer, call), other in zip(kept, others, strict=True):
            done = await call
            assert done.served_ids == prompt.token_ids
            assert done.versions == (version,) * REPLY
            print(f"version {version}: {gap(scorer, served, prompt, done):.2e} nat")
            assert gap(scorer, served, prompt, done) < BAR
            assert gap(other, served, prompt, done) > 10 * BAR, "each adapter says something else"
            if tower:
                assert gap(without_tower(scorer), served, prompt, done) > 10 * BAR, (
                    "that of the tower says something, too"
                )
        assert sent(tmp_path) < 1.1 * sum(value.nbytes for value in policy.parameters().values()) + 20_000
    finally:
        await served.engine.close()

"""Adapters alone against a real vLLM: what it samples with each of them is what the trainer scores, and nothing else is sent."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import torch
from recording import png
from vllm_serving import Served, serving

from deskhand.engines.base import Completion, Prompt, Sampling
from deskhand.models.load import load
from deskhand.recorder.graph import Call, CallGraph
from deskhand.recorder.messages import Picture, message
from deskhand.training.config import AdapterConfig, PolicyConfig
from deskhand.training.policy import Policy
from deskhand.training.publish import publish

BAR = 1e-2
RANK, REPLY = 4, 120


def move(policy: Policy, seed: int) -> None:
    """Other adapters."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.parameters().values():
            parameter.normal_(0, 0.05)


def gap(policy: Policy, served: Served, prompt: Prompt, done: Completion) -> float:
    """Largest difference between the trainer's log-probs and vLLM's."""
    graph = CallGraph([Call("0", None, prompt.token_ids, prompt.spans, done)])
    return float(np.abs(policy.logprobs(graph.sequences(), served.images)[0] - np.array(done.logprobs)).max())


def sent(folder: Path) -> int:
    """Bytes that were published last."""
    return sum(file.stat().st_size for file in folder.glob("version-3/*.safetensors"))


async def test_each_version_is_an_adapter_of_its_own_over_the_weights_that_vllm_has(python: Path, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    served = serving(python, tmp_path, "float32", adapter_rank=RANK)
    policy = Policy(load("tiny").model, PolicyConfig(adapter=AdapterConfig(rank=RANK, alpha=8)), served.renderer.banned_ids)
    image = served.images.add(png(3, 256, 192))
    prompt = served.renderer.render((message("user", [Picture(image.sha256), "Click the blue box"]),), served.images)

    def asking(tokens: int) -> Sampling:
        return Sampling(tokens, banned_ids=served.renderer.banned_ids, seed=1)

    try:
        await served.engine.start()
        assert served.engine.takes_adapters
        plain = await served.generate(prompt, asking(8))
        assert plain.versions == (0,) * 8
        kept: list[tuple[int, Policy, asyncio.Task[Completion]]] = []
        for version in (1, 2, 3):
            if len(kept) > 1:  # the server holds two: one that is older still would be asked again with the newest
                await kept[-2][2]
            assert not kept or not kept[-1][2].done(), "the request of the version before is in flight"
            move(policy, version)
            await publish(policy, served.engine, version)
            kept.append((version, policy.copy(frozen=True), asyncio.create_task(served.generate(prompt, asking(REPLY)))))
            await asyncio.sleep(0.2)
        others = [policy.copy(frozen=True), *(scorer for _, scorer, _ in kept[:-1])]
        for (version, scorer, call), other in zip(kept, others, strict=True):
            done = await call
            assert done.served_ids == prompt.token_ids
            assert done.versions == (version,) * REPLY
            print(f"version {version}: {gap(scorer, served, prompt, done):.2e} nat")
            assert gap(scorer, served, prompt, done) < BAR
            assert gap(other, served, prompt, done) > 10 * BAR, "each adapter says something else"
        assert sent(tmp_path) < 1.1 * sum(value.nbytes for value in policy.parameters().values()) + 20_000
    finally:
        await served.engine.close()

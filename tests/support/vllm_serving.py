"""A recorder's parts over an engine with a vLLM server, and what the engine gave, as it gave it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from patience import limit

from deskhand.engines.http_engine.engine import HttpEngine, ServerTimeouts
from deskhand.engines.vllm import launch_vllm
from deskhand.models.load import TINY_FOLDER, LoadedModel, load
from deskhand.recorder.images import ImageCache
from deskhand.recorder.renderer import ChatRenderer
from deskhand.types import Completion, Prompt, Sampling

PATIENCE = ServerTimeouts(start_s=limit(600), outage_s=limit(900), request_s=limit(600), stall_s=limit(120), poll_s=0.5)


@dataclass
class Served:
    """An engine, what the recorder of its model needs, and every completion as the engine gave it."""

    engine: HttpEngine
    model: LoadedModel
    images: ImageCache
    renderer: ChatRenderer
    completions: list[tuple[Prompt, Sampling, Completion]] = field(default_factory=list)

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Completion:
        done = await self.engine.generate(prompt, sampling)
        self.completions.append((prompt, sampling, done))
        return done

    async def in_flight(self, prompt: Prompt, sampling: Sampling, tokens: int = 3) -> asyncio.Task[Completion]:
        """A request of which the server has sampled so many tokens, but not all."""
        while True:
            before = await self._sampled()
            call = asyncio.create_task(self.generate(prompt, sampling))
            while not call.done() and await self._sampled() < before + tokens:  # noqa: ASYNC110 - another process samples
                await asyncio.sleep(0.05)
            if not call.done():
                return call
            await call

    async def _sampled(self) -> float:
        """Tokens that the server has sampled."""
        assert self.engine._endpoint is not None
        reply = await self.engine._endpoint._client.get("/metrics", timeout=limit(60))
        lines = reply.text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:generation_tokens_total"))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)


def serving(
    python: Path,
    folder: Path,
    dtype: str,
    adapter_rank: int | None = None,
    *,
    adapter_tower: bool = False,
    checkpoint: Path = TINY_FOLDER,
) -> Served:
    """The bundled policy, or another checkpoint, behind a vLLM that is not started yet."""
    model = load(str(checkpoint))
    sizes: dict[str, Any] = {
        "max_tokens": 2048,
        "max_batch": 8,
        "max_images": 8,
        "threads": 2,
        "adapter_rank": adapter_rank,
    }
    sizes["adapter_tower"] = adapter_tower
    engine = launch_vllm(checkpoint, model.image_processor, python, folder, dtype=dtype, patience=PATIENCE, **sizes)
    return Served(engine, model, ImageCache(model.image_processor), ChatRenderer(model.tokenizer))

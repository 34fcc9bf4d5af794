"""Parts that `benchmarks.versions` measures in two commits: `python version_parts.py PART JSON`, PYTHONPATH naming one.

It runs in either tree, so it imports by the first name that exists. The last line of its output is JSON.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from PIL import Image, ImageDraw

TEXT = "Click the button named Save and then close the window"


def first(*names: str) -> Any:
    """Return the first of `module:attribute` that exists."""
    for name in names:
        module, attribute = name.split(":")
        try:
            return getattr(import_module(module), attribute)
        except (ImportError, AttributeError):
            continue
    raise ImportError(f"none of {', '.join(names)} exists")


def screens(count: int, width: int, height: int) -> list[np.ndarray]:
    """Return `uint8[H, W, 4]` of a desktop whose windows change a little from one to the next."""
    png = first("benchmarks.synthetic_screens:screenshot", "benchmarks.screens:screenshot")
    random, found = np.random.default_rng(0), []
    shown = Image.open(io.BytesIO(png(random, width, height))).convert("RGB")
    for number in range(count):
        left, top = int(random.integers(0, width // 2)), int(random.integers(0, height // 2))
        draw = ImageDraw.Draw(shown)
        draw.rectangle((left, top, left + width // 4, top + height // 4), fill=(236, 236, 236), outline=(90, 90, 90))
        draw.text((left + 4, top + 4), f"File {number} {random.integers(10**9)}", fill=(20, 20, 20))
        bgrx = np.zeros((height, width, 4), np.uint8)
        bgrx[..., 2::-1] = np.asarray(shown)
        bgrx.flags.writeable = False
        found.append(bgrx)
    return found


def build_desktop(pixels: list[np.ndarray], steps: int) -> Any:
    """Return a desktop that shows the next of the screens after each action and each reset, at once."""
    painted = first("fake_desktop:PaintedDesktop", "painted:PaintedDesktop")
    frame_class = first("deskhand.desktop.base:Frame")

    class Desktop(painted):
        resets = 0

        async def reset(self, spec: Any) -> Any:
            self.resets, self.actions = self.resets + 1, 0
            return await super().reset(spec)

        async def observe(self) -> Any:
            self._sequence += 1
            shown = pixels[self.resets * (steps + 1) + self.actions]
            return frame_class(shown, self._sequence, str(self._sequence), 1.0, "quiet", (0, 0, 1, 1), (0, 0))

    return Desktop()


class Pool:
    """Lends one desktop."""

    quota = episode_timeout_s = lot = episode_s = None

    def __init__(self, desktop: Any) -> None:
        self.desktop = desktop

    async def lease(self, _: Any = None) -> Any:
        return self

    async def release(self, _: Any) -> None:
        return None


async def step(width: int, height: int, episodes: int, steps: int) -> dict[str, Any]:
    """Return the CPU milliseconds of a step of an agent: screen, recorder, engine that takes patches, action, store."""
    endpoint = first("benchmarks.synthetic_screens:Endpoint", "benchmarks.screens:Endpoint")()
    reply = first("benchmarks.synthetic_screens:REPLY", "benchmarks.screens:REPLY")
    recorder_class = first("deskhand.recorder.recorder:Recorder", "deskhand.recorder.session:Recorder")
    runner_class = first("deskhand.rollout.runner:RecordedRunner", "deskhand.rollout.runner:Runner")
    request = first("deskhand.rollout.groups:EpisodeRequest", "deskhand.rollout.groups:Ticket")
    task = first("fake_desktop:square_task", "painted:square_task")(1)
    desktop = build_desktop(screens((episodes + 2) * (steps + 1), width, height), steps)
    zero = await task.check(desktop)  # nothing was clicked

    async def check(_: Any) -> Any:
        return zero

    task = replace(task, width=width, height=height, max_steps=steps, check=check, milestones=())

    async def script(task: Any, desktop: Any) -> AsyncIterator[str]:
        for _ in range(steps):
            yield reply

    with tempfile.TemporaryDirectory() as folder:
        frames = first("deskhand.store.frames:Frames")(Path(folder))
        cache = first("deskhand.recorder.images:ImageCache")
        images = cache(endpoint.processor, fetch=getattr(frames, "pixels", frames.png))
        recorder = recorder_class(endpoint.renderer, endpoint.engine, images)
        agent = first("deskhand.agents.desktop_agent:DesktopAgent")()
        runner = runner_class(Pool(desktop), recorder, agent, frames, script=script, playing=endpoint.engine.playing)
        spent = []
        for number in range(episodes + 1):
            before = time.process_time()
            result = await runner.run(request(f"e{number}", task, "g", number))
            spent.append(1e3 * (time.process_time() - before) / steps)
            assert len(result.transcript.steps) == steps, result.outcome
        stored = sorted(frames)
        await runner.close()
        recorder.close()
    return {"ms": statistics.median(spent[1:]), "stored": len(stored), "first": stored[0]}


def trainer(checkpoint: str, rows: int, steps: int, width: int, height: int, out: str) -> dict[str, Any]:
    """Return the CPU seconds of a training step of a checkpoint folder and the peak memory; log-probs go to `out`.

    Settings are those of the tree's demo. If its trainer uses the engine's image features, an engine has read the rows,
    as the one that sampled them has in a run; that work is the engine's in both trees and is not counted.
    """
    import torch

    torch.set_num_threads(1)
    model = first("deskhand.models.load:load")(checkpoint)
    renderer = first("deskhand.recorder.renderer:ChatRenderer")(model.tokenizer)
    config = first("deskhand.config.trainer:TrainerConfig", "deskhand.training.config:TrainerConfig")
    policy_config = first("deskhand.config.trainer:PolicyConfig", "deskhand.training.config:PolicyConfig")
    policy_class = first("deskhand.trainer.policy:Policy", "deskhand.training.policy:Policy")
    trainer_class = first("deskhand.trainer.trainer:Trainer", "deskhand.training.trainer:Trainer")
    sample = first("deskhand.trainer.batch:TrainingSample", "deskhand.training.batch:TrainingSample")
    images = first("deskhand.recorder.images:ImageCache")(model.image_processor)
    shown = []
    for pixels in screens(2 * rows, width, height):
        buffer = io.BytesIO()
        Image.fromarray(np.ascontiguousarray(pixels[..., 2::-1])).save(buffer, "PNG", compress_level=1)
        shown.append(images.add(buffer.getvalue()))
    samples = [
        sample(
            build_row(renderer, [shown[(2 * row + turn) % len(shown)] for turn in range(1 + row % 5)]),
            advantage,
            f"{row}",
        )
        for row in range(rows)
        for advantage in [1.0 if row % 2 else -1.0]
    ]
    by_name = {image.sha256: image for image in shown}
    threads = "torch_threads" if "torch_threads" in config.model_fields else "threads"
    demo = yaml.safe_load(Path("configs/tiny_cpu.yaml").read_text())
    policy = policy_class(model.model, policy_config(**demo["policy"]), renderer.banned_ids)
    trained = trainer_class(policy, config(learning_rate=1e-6, **{threads: 1}))
    if hasattr(first("deskhand.engines.hf:HfEngine"), "image_features"):
        asyncio.run(show(model, trained, samples, by_name, renderer.banned_ids))
    scored = policy.logprobs([one.sequence for one in samples], by_name)
    np.savez(out, *scored)
    spent, losses = [], []
    for _ in range(steps + 1):
        before = time.process_time()
        losses.append(trained.step(samples, by_name).loss)
        spent.append(time.process_time() - before)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {"s": statistics.median(spent[1:]), "loss": losses[0], "rss_mib": pages * os.sysconf("SC_PAGE_SIZE") / 2**20}


async def show(model: Any, trained: Any, samples: list[Any], images: dict[str, Any], banned: tuple[int, ...]) -> None:
    """Let an engine with the trainer's weights read all rows."""
    prompt, sampling = first("deskhand.types:Prompt"), first("deskhand.types:Sampling")
    engine = first("deskhand.engines.hf:HfEngine")(model, threads=1)
    first("deskhand.trainer.weight_sync:attach_engine")(trained, engine)
    for row in (one.sequence for one in samples):
        shown = {span.sha256: images[span.sha256] for span in row.spans}
        await engine.generate(prompt(row.token_ids, row.spans, shown), sampling(1, banned_ids=banned, seed=0))
    await engine.set_version(0)
    await engine.close()


def build_row(renderer: Any, images: list[Any]) -> Any:
    """Return a training sequence of one turn for each image."""
    sequence, span = (
        first("deskhand.recorder.graph:Sequence"),
        first("deskhand.types:ImageSpan", "deskhand.engines.base:ImageSpan"),
    )
    text = list(renderer.encode_text(TEXT))
    ids, sampled, spans = list[int](), list[bool](), []
    for image in images:
        ids += text
        spans.append(span(len(ids), image.tokens, image.sha256))
        ids += [renderer.image_id] * image.tokens + text[:3]
        sampled += [False] * (len(ids) - len(sampled))
        ids += text[:12]
        sampled += [True] * (len(ids) - len(sampled))
    logprobs, versions = [-1.0 if one else 0.0 for one in sampled], [0 if one else -1 for one in sampled]
    return sequence(tuple(ids), tuple(sampled), tuple(logprobs), tuple(versions), tuple(spans), ("a",))


def main(part: str, settings: dict[str, Any]) -> None:
    found = asyncio.run(step(**settings)) if part == "step" else trainer(**settings)
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))

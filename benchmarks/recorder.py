"""What the recorder costs beside the engine: `python -m benchmarks.recorder`.

An agent plays episodes in process over an engine that answers at once, so that all the time is the client's, the endpoint's
and the recorder's. Printed: CPU time per call, and the exponent of an episode's CPU time in its turns (1 is linear), for a window
(grow to 10 screenshots, drop to 2) with and without the older turns' texts, by a plain HTTP client and by the `openai` client
(which walks through every message of every request); then, with several agents at once, the longest callback of
the event loop.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import io
import os
import platform
import secrets
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import openai
from PIL import Image, ImageDraw
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from deskhand.engines.scripted import ScriptedEngine
from deskhand.models.tiny.architecture import PREPROCESSOR
from deskhand.models.tiny.tokenizer import build_tokenizer
from deskhand.recorder.graph import CallGraph
from deskhand.recorder.images import ImageCache
from deskhand.recorder.proxy import create_app, in_process_client
from deskhand.recorder.renderer import ChatRenderer
from deskhand.recorder.session import Recorder

GROW_TO, DROP_TO = 10, 2
SIZES = {"256x192": (256, 192), "1280x720": (1280, 720)}


def screenshot(random: np.random.Generator, width: int, height: int) -> bytes:
    """PNG of windows, buttons and lines of text, never the same twice."""
    image = Image.new("RGB", (width, height), (58, 110, 165))
    draw = ImageDraw.Draw(image)
    for _ in range(6):
        left, top = int(random.integers(0, width * 3 // 4)), int(random.integers(0, height * 3 // 4))
        draw.rectangle((left, top, left + width // 3, top + height // 3), fill=(236, 236, 236), outline=(90, 90, 90))
        for line in range(height // 60):
            draw.text((left + 4, top + 4 + 12 * line), f"File {random.integers(10**9)} Edit View", fill=(20, 20, 20))
    buffer = io.BytesIO()
    image.save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


async def forever() -> AsyncIterator[str]:
    while True:
        yield '{"op":"click","x":512,"y":300}'


class Bench:
    """A recorder over an engine that answers at once."""

    def __init__(self) -> None:
        tokenizer = build_tokenizer(["Click the button named Save and then close the window."])
        self.renderer = ChatRenderer(tokenizer)
        self.processor = Qwen2VLImageProcessorPil(**{key: value for key, value in PREPROCESSOR.items() if "type" not in key})
        self.engine = ScriptedEngine(self.renderer.encode_text, self.renderer.stop_ids[0])
        self.images = ImageCache(self.processor)
        self.recorder = Recorder(self.renderer, self.engine, self.images)
        self.app = create_app(self.recorder, secrets.token_urlsafe(32))

    async def episode(self, http: Any, name: str, screens: list[bytes], keep_texts: bool, by_openai: bool) -> CallGraph:
        key = self.recorder.start(name)
        client = openai.AsyncOpenAI(base_url="http://recorder/v1", api_key=key, http_client=http, max_retries=0)
        talk: list[dict[str, Any]] = []
        with self.engine.playing(forever()):
            for screen in screens:
                url = f"data:image/png;base64,{base64.b64encode(screen).decode()}"
                image = {"type": "image_url", "image_url": {"url": url}}
                talk.append({"role": "user", "content": [image, {"type": "text", "text": "Click the button named Save."}]})
                shown = [index for index, one in enumerate(talk) if one["role"] == "user" and len(one["content"]) == 2]
                if len(shown) > GROW_TO:
                    first = shown[-DROP_TO]
                    older = [{**one, "content": one["content"][1:]} if one["role"] == "user" else one for one in talk[:first]]
                    talk = (older if keep_texts else []) + talk[first:]
                body: dict[str, Any] = {"model": "m", "messages": talk, "max_tokens": 64}
                if by_openai:
                    reply = await client.chat.completions.create(**body)
                    talk.append(reply.choices[0].message.model_dump(exclude_none=True))
                else:
                    answer = await http.post("/v1/chat/completions", json=body, headers={"authorization": f"Bearer {key}"})
                    talk.append(answer.json()["choices"][0]["message"])
        return self.recorder.end(name)


async def scaling(size: tuple[int, int], keep_texts: bool, by_openai: bool, turns: list[int]) -> tuple[dict[int, float], float]:
    """CPU seconds of one episode by turns, and the exponent fitted to them. Screens are prepared before."""
    bench, cpu_s = Bench(), {}
    screens = [screenshot(np.random.default_rng(index), *size) for index in range(24)]
    async with in_process_client(bench.app) as http:
        await bench.episode(http, "first", screens, keep_texts, by_openai)
        for count in turns:
            started = time.process_time()
            graph = await bench.episode(http, f"{count}", [screens[index % 24] for index in range(count)], keep_texts, by_openai)
            assert len(graph.calls) == count
            cpu_s[count] = time.process_time() - started
    slope = float(np.polyfit(np.log(list(cpu_s)), np.log(list(cpu_s.values())), 1)[0])
    return cpu_s, slope


async def longest_callback(size: tuple[int, int], agents: int, turns: int) -> tuple[float, float, int]:
    """(wall, CPU) milliseconds of the longest callback of the event loop, and the calls made meanwhile.

    CPU is that of the loop's own thread: what the callback computed, whatever else the machine was doing.
    """
    bench = Bench()
    screens = [[screenshot(np.random.default_rng([agent, turn]), *size) for turn in range(turns)] for agent in range(agents)]
    async with in_process_client(bench.app) as http:
        await bench.episode(http, "first", screens[0][:3], True, True)
        with measured_callbacks() as times_ms:
            await asyncio.gather(*(bench.episode(http, f"{agent}", screens[agent], True, True) for agent in range(agents)))
    return max(wall for wall, _ in times_ms), max(cpu for _, cpu in times_ms), agents * turns


@contextmanager
def measured_callbacks() -> Iterator[list[tuple[float, float]]]:
    """Measure every callback that an event loop of this process runs inside."""
    plain, times_ms = asyncio.Handle._run, []

    def run(handle: asyncio.Handle) -> None:
        wall, cpu = time.perf_counter(), time.thread_time()
        plain(handle)
        times_ms.append(((time.perf_counter() - wall) * 1e3, (time.thread_time() - cpu) * 1e3))

    asyncio.Handle._run = run  # type: ignore[method-assign]
    try:
        yield times_ms
    finally:
        asyncio.Handle._run = plain  # type: ignore[method-assign]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split(":")[0] if __doc__ else None)
    parser.add_argument("--turns", type=int, nargs="+", default=[25, 50, 100, 200])
    parser.add_argument("--sizes", nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--agents", type=int, default=4)
    arguments = parser.parse_args()
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    for name in arguments.sizes:
        size = SIZES[name]
        for by_openai in (False, True):
            for keep_texts in (False, True):
                cpu_s, slope = asyncio.run(scaling(size, keep_texts, by_openai, arguments.turns))
                per_call = ", ".join(f"{count} turns {cpu / count * 1e3:.2f}" for count, cpu in cpu_s.items())
                client = "openai client" if by_openai else "HTTP client"
                history = "all texts kept" if keep_texts else "texts dropped with images"
                print(f"{name}, {client}, {history}: CPU ms per call: {per_call}; exponent {slope:.2f}", flush=True)
        wall_ms, cpu_ms, calls = asyncio.run(longest_callback(size, arguments.agents, 12))
        print(
            f"{name}, {arguments.agents} agents, {calls} calls with new screenshots: "
            f"longest callback of the loop {wall_ms:.1f} ms wall, {cpu_ms:.1f} ms CPU"
        )


if __name__ == "__main__":
    main()

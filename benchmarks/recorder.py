"""What the recorder costs beside the engine: `python -m benchmarks.recorder [--full]`.

Engines that answer at once stand behind Deskhand's endpoint and behind AReaL's proxy (`benchmarks.recorder_vs_areal`), so all the time is the
endpoints' own. Printed:

1. parts: what each part of taking one new screenshot costs (`benchmarks.recorder_parts`);
2. overhead: from a request to its reply over HTTP, p50 and p99, with 1 and 32 sessions at once and 1, 5 and 15 screenshots of
   1280x720 in the conversation, of which one is new in each call. Deskhand decodes that screenshot, hands the trainer's patches
   of it to its engine and has picture and call on disk before it answers; AReaL's proxy (1.0.4) hands pictures on and keeps its
   records in memory. More alike are two further lines: `blind engine`, whose engine asks for no patches, as the one behind AReaL's
   proxy does not (they are then made when a trainer asks); and `known`, where the same requests were made before in another
   session, so that no screenshot is new to either;
3. growth: the CPU time of decoding, preprocessing, tokenising and rendering over episodes of more and more turns that keep all
   their screenshots, and the exponent fitted to it (1 is linear), side by side with running the checkpoint's processor and
   tokenizer on each whole prefix; the bytes of the requests, which the API itself makes grow with the square of the turns, and the
   CPU time of both whole processes, to which these bytes belong, are printed beside it;
4. the longest callback of the event loop, with several agents at once.

Without --full the same is measured on smaller screens and shorter episodes, and AReaL's proxy only where its environment is there;
with --smoke it is left out.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.recorder_parts import COUNT, print_parts
from benchmarks.recorder_vs_areal import Proxy, areal, areal_python, deskhand
from benchmarks.synthetic_screens import QUESTION, Endpoint, body, forever, screenshot, turn
from benchmarks.thresholds import Bars, parser_of, print_head
from deskhand.recorder import images as images_module
from deskhand.recorder.fast_patches import PatchLookup
from deskhand.recorder.images import ImageCache, decode_rgb
from deskhand.recorder.renderer import ChatRenderer
from deskhand.recorder.server import in_process_client

EXPONENT = 1.1
"""The bar of growth: time is proportional to turns to at most this power."""


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    screen: tuple[int, int]
    turns: tuple[int, ...]
    shown: tuple[int, ...]
    sessions: tuple[tuple[int, int], ...]
    """How many at once, and the calls of each."""


FULL = Size((1280, 720), (5, 10, 20, 40, 60), (1, 5, 15), ((1, 40), (32, 6)))
SMALL = Size((320, 240), (5, 10, 20), (1, 5), ((1, 8), (8, 4)))
SIZES = {"smoke": Size((160, 128), (2, 4), (1, 2), ((2, 2),)), "small": SMALL, "full": FULL}


@functools.cache
def screen_of(session: int, number: int, width: int, height: int) -> dict[str, Any]:
    """A message with a screenshot of its own."""
    return turn(screenshot(np.random.default_rng([session, number]), width, height))


async def overheads_ms(
    proxy: Proxy, screen: tuple[int, int], sessions: int, calls: int, shown: int, part: str
) -> tuple[list[float], float]:
    """(milliseconds of each call but the first, calls a second), all sessions at once. Every call has `shown` screenshots, one of
    them new to the process unless another `part` with the same numbers was measured before."""
    requests = []
    for session in range(sessions):
        screens = [screen_of(session, number + 1000 * shown, *screen) for number in range(calls + shown)]
        reply = {"role": "assistant", "content": "ok"}
        requests.append(
            [body([one for asked in screens[n : n + shown] for one in (asked, reply)][:-1]) for n in range(calls + 1)]
        )
    times: list[float] = []

    async def play(session: int) -> None:
        headers = await proxy.session(f"{sessions}-{shown}-{session}-{part}")
        for number, raw in enumerate(requests[session]):
            started = time.perf_counter()
            await proxy.ask(raw, headers)
            if number:
                times.append((time.perf_counter() - started) * 1e3)

    started = time.perf_counter()
    await asyncio.gather(*(play(session) for session in range(sessions)))
    return times, sessions * (calls + 1) / (time.perf_counter() - started)


async def process_cost(proxy: Proxy, screens: list[bytes]) -> float:
    """CPU seconds of the proxy's process over an episode that keeps all its screenshots."""
    talk, headers = list[dict[str, Any]](), await proxy.session(f"growth-{len(screens)}")
    before = proxy.cpu_s()
    for screen in screens:
        talk.append(turn(screen))
        said = await proxy.ask(body(talk), headers)
        talk.append({"role": "assistant", "content": said["content"]})
    return proxy.cpu_s() - before


async def recorder_cost(screens: list[bytes]) -> tuple[float, int]:
    """(CPU seconds of the recorder's work on images and text in an episode that keeps all screenshots, bytes of its requests)."""
    bench, talk, sent = Endpoint(prepared_bytes=8 << 30), list[dict[str, Any]](), 0
    headers = {"authorization": f"Bearer {bench.recorder.open_session('s')}"}
    async with in_process_client(bench.app) as http:
        with bench.engine.playing(forever()), measured_work() as spent:
            for screen in screens:
                talk.append(turn(screen))
                raw = body(talk)
                sent += len(raw)
                answer = await http.post("/v1/chat/completions", content=raw, headers=headers)
                talk.append(answer.json()["choices"][0]["message"])
    (row,) = bench.recorder.close_session("s").sequences()
    assert len(row.spans) == len(screens)
    return sum(spent), sent


def reprocessing_cost(screens: list[bytes]) -> float:
    """CPU seconds of decoding, preprocessing and tokenising every prefix anew, as a processor on the whole conversation does."""
    bench = Endpoint()
    started = time.process_time()
    for count in range(1, len(screens) + 1):
        decoded = [decode_rgb(screen, max_pixels=1 << 26) for screen in screens[:count]]
        grids = bench.processor(images=decoded, return_tensors="np")["image_grid_thw"]
        talk = []
        for _ in range(count):
            talk.append({"role": "user", "content": [{"type": "image"}, {"type": "text", "text": QUESTION}]})
            talk.append({"role": "assistant", "content": "ok"})
        text = bench.tokenizer.apply_chat_template(talk[:-1], tokenize=False, add_generation_prompt=True)
        for grid in grids:
            text = text.replace("<|image_pad|>", "<|hole|>" * int(np.prod(grid) // 4), 1)
        bench.tokenizer(text.replace("<|hole|>", "<|image_pad|>"), add_special_tokens=False)
    return time.process_time() - started


@contextmanager
def measured_work() -> Iterator[list[float]]:
    """Collect the CPU seconds of decoding, preprocessing, making values for the engine and rendering, each in its own thread."""
    spent: list[float] = []
    targets = [
        (images_module, "decode_rgb"),
        (ImageCache, "_preprocess"),
        (PatchLookup, "values"),
        (ChatRenderer, "render"),
    ]
    plain = [(owner, name, getattr(owner, name)) for owner, name in targets]

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            started = time.thread_time()
            try:
                return function(*arguments, **options)
            finally:
                spent.append(time.thread_time() - started)

        return run

    for owner, name, function in plain:
        setattr(owner, name, timed(function))
    try:
        yield spent
    finally:
        for owner, name, function in plain:
            setattr(owner, name, function)


async def longest_callback_ms(size: Size, agents: int) -> tuple[float, float]:
    """(wall, CPU) milliseconds of the longest callback of the event loop while several agents call."""
    bench = Endpoint()
    screens = [
        [turn(screenshot(np.random.default_rng([agent, n]), *size.screen)) for n in range(6)] for agent in range(agents)
    ]

    async def play(agent: int) -> None:
        headers = {"authorization": f"Bearer {bench.recorder.open_session(f'{agent}')}"}
        for screen in screens[agent]:
            await http.post("/v1/chat/completions", content=body([screen]), headers=headers)

    async with in_process_client(bench.app) as http:
        with bench.engine.playing(forever()), measured_callbacks() as times_ms:
            await asyncio.gather(*(play(agent) for agent in range(agents)))
    return max(wall for wall, _ in times_ms), max(cpu for _, cpu in times_ms)


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


def exponent(turns: tuple[int, ...], seconds: list[float]) -> float:
    """The slope of log time over log turns."""
    return float(np.polyfit(np.log(turns), np.log(seconds), 1)[0])


async def overhead(size: Size, proxies: list[Proxy]) -> None:
    """Print what a call takes, proxy beside proxy."""
    for sessions, calls in size.sessions:
        for shown in size.shown:
            for part in ("new", "known"):
                for proxy in proxies:
                    times, rate = await overheads_ms(proxy, size.screen, sessions, calls, shown, part)
                    p50, p99 = np.percentile(times, [50, 99])
                    figure = f"p50 {p50:7.1f} ms, p99 {p99:7.1f} ms, {rate:5.1f} calls/s ({len(times)} calls)"
                    name = f"{proxy.name}{', known' if part == 'known' else ''}"
                    print(f"overhead, {sessions:2d} sessions, {shown:2d} screenshots, {name:29s}: {figure}", flush=True)


async def growth(size: Size, proxies: list[Proxy], bars: Bars) -> None:
    """Print and judge how an episode's cost grows."""
    await recorder_cost([screenshot(np.random.default_rng(n), *size.screen) for n in range(2)])
    found: dict[str, list[float]] = {}
    for turns in size.turns:
        screens = [screenshot(np.random.default_rng([turns, n]), *size.screen) for n in range(turns)]
        spent, sent = await recorder_cost(screens)
        again = reprocessing_cost(screens)
        whole = {f"{proxy.name}'s process": await process_cost(proxy, screens) for proxy in proxies}
        for name, seconds in {"recorder": spent, "every prefix anew": again, **whole}.items():
            found.setdefault(name, []).append(seconds)
        figures = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in whole.items())
        print(
            f"{turns:3d} turns, CPU: recorder {spent:7.2f} s, every prefix anew {again:7.2f} s, ratio {again / spent:5.1f}; "
            f"requests {sent / 1e6:.1f} MB; with them {figures}",
            flush=True,
        )
    slopes = {name: exponent(size.turns, seconds) for name, seconds in found.items()}
    figure = f"turns^{slopes.pop('recorder'):.2f}"
    bars.check("growth of the recorder's cost", float(figure[6:]) <= EXPONENT, figure, f"<= turns^{EXPONENT}")
    print("; ".join(f"{name} grows as turns^{slope:.2f}" for name, slope in slopes.items()))


async def measure(size: Size, python: Path | None, bars: Bars) -> None:
    """Everything; AReaL's proxy where there is a Python for it."""
    async with AsyncExitStack() as stack:
        proxies = [await stack.enter_async_context(deskhand(kind)) for kind in ("looking", "blind")]
        if python is None:
            print("AReaL's proxy is not measured: make its environment with scripts/environment areal")
        else:
            proxies.append(await stack.enter_async_context(areal(python)))
        await overhead(size, proxies)
        await growth(size, [proxies[0], *proxies[2:]], bars)
    wall, cpu = await longest_callback_ms(size, 4)
    print(f"4 agents with new screenshots: longest callback of the event loop {wall:.1f} ms wall, {cpu:.1f} ms CPU")


def main() -> None:
    parser = parser_of(__doc__, "1280x720, up to 60 turns and 32 sessions, AReaL's proxy always")
    options, bars = parser.parse_args(), Bars()
    size = SIZES[options.size]
    python = None if options.size == "smoke" else areal_python(make=options.size == "full")
    print_head()
    print(f"screens of {size.screen[0]}x{size.screen[1]}")
    print_parts(size.screen, 4 if options.size == "smoke" else COUNT)
    asyncio.run(measure(size, python, bars))
    bars.finish()


if __name__ == "__main__":
    main()

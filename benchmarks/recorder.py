"""Overhead of the recorder: `python -m benchmarks.recorder [--full]`.

Instant engines run behind Deskhand's endpoint and AReaL's proxy (`benchmarks.recorder_vs_areal`), so all time is the
endpoint's. Printed:

1. parts: cost of each step of processing a new screenshot (`benchmarks.recorder_parts`); 2. overhead: request to
reply over HTTP, p50 and p99, with 1 and 32 concurrent sessions and 1, 5 and 15 screenshots of 1280x720 in the
conversation, one of them new per call. Deskhand decodes that screenshot, passes the trainer's patches to its engine
and stores image and call before it replies; AReaL's proxy (1.0.4) passes images through and keeps records in memory.
More comparable are `blind engine`, whose engine requests no patches, and `known`, where another session already sent
the same screenshots. Also the CPU time of the process per call, first calls included, whose screenshots are all new.
Compared with AReaL's proxy, a call with a new screenshot and a blind engine may take 2.5 times as long; a call with
known screenshots may not take longer; 3. growth: CPU time of decoding, preprocessing,
tokenizing and rendering over episodes of increasing length that keep all screenshots, with the fitted exponent (1 is
linear), next to the checkpoint's processor and tokenizer on every whole prefix. Request bytes, which grow
quadratically by the API's design, and the CPU time of both processes are printed too; 4. the longest event-loop
callback with several concurrent agents.

Without --full, screens are smaller and episodes shorter, and AReaL's proxy runs only if its environment exists;
--smoke skips it.
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
from benchmarks.thresholds import Thresholds, parser_of, print_head
from deskhand.recorder import images as images_module
from deskhand.recorder.fast_patches import PatchExtractor
from deskhand.recorder.image_decoding import decode_rgb
from deskhand.recorder.renderer import ChatRenderer
from deskhand.recorder.server import in_process_client
from deskhand.types import PatchLookup

EXPONENT = 1.1
"""Threshold of growth: exponent of time over turns."""
MAX_RATIO = 2.5
"""Of the cost of a call with a new screenshot and a blind engine, to that of AReaL's proxy."""
MAX_KNOWN_RATIO = 1.0
"""Of the cost of a call with known screenshots, to that of AReaL's proxy: not slower."""
MAX_TAIL = 10.0
"""p99 of a call over its p50."""


@dataclass(frozen=True)
class Size:
    """Amount of work."""

    screen: tuple[int, int]
    turns: tuple[int, ...]
    shown: tuple[int, ...]
    sessions: tuple[tuple[int, int], ...]
    """How many at once, and the calls of each."""


FULL = Size((1280, 720), (5, 10, 20, 40, 60), (1, 5, 15), ((1, 40), (32, 6)))
SMALL = Size((320, 240), (5, 10, 20), (1, 5, 15), ((1, 8), (8, 4)))
SIZES = {"smoke": Size((160, 128), (2, 4), (1, 2), ((2, 2),)), "small": SMALL, "full": FULL}


@functools.cache
def screen_of(session: int, number: int, width: int, height: int) -> dict[str, Any]:
    """Return a message with a new screenshot."""
    return turn(screenshot(np.random.default_rng([session, number]), width, height))


async def overheads_ms(
    proxy: Proxy, screen: tuple[int, int], sessions: int, calls: int, shown: int, part: str
) -> tuple[list[float], float]:
    """(milliseconds of each call but the first, calls a second), all sessions at once. Every call has `shown`
    screenshots, one of them new to the process unless another `part` with the same numbers was measured before."""
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
    """Return the proxy's CPU seconds for an episode that keeps all screenshots."""
    talk, headers = list[dict[str, Any]](), await proxy.session(f"growth-{len(screens)}")
    before = proxy.cpu_s()
    for screen in screens:
        talk.append(turn(screen))
        said = await proxy.ask(body(talk), headers)
        talk.append({"role": "assistant", "content": said["content"]})
    return proxy.cpu_s() - before


async def recorder_cost(screens: list[bytes]) -> tuple[float, int]:
    """Return (CPU seconds of image and text processing, request bytes) of an episode that keeps all screenshots."""
    bench, talk, sent = Endpoint(prepared_bytes=8 << 30, form="values"), list[dict[str, Any]](), 0
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
    """Return the CPU seconds of decoding, preprocessing and tokenizing every prefix again."""
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
    """Collect the CPU seconds of each processing step, per thread."""
    spent: list[float] = []
    targets = [
        (images_module, "decode_rgb"),
        (PatchExtractor, "extract"),
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
    """Return (wall, CPU) milliseconds of the longest event-loop callback with several agents."""
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
    """Measure every event-loop callback of this process."""
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
    """Return the slope of log time over log turns."""
    return float(np.polyfit(np.log(turns), np.log(seconds), 1)[0])


async def overhead(size: Size, proxies: list[Proxy], thresholds: Thresholds) -> None:
    """Print the duration and CPU time of a call for each proxy, and compare them."""
    for sessions, calls in size.sessions:
        for shown in size.shown:
            for part in ("new", "known"):
                costs: dict[str, tuple[float, float]] = {}
                for proxy in proxies:
                    before = proxy.cpu_s()
                    times, rate = await overheads_ms(proxy, size.screen, sessions, calls, shown, part)
                    cpu_ms = 1e3 * (proxy.cpu_s() - before) / (sessions * (calls + 1))
                    p50, p99 = np.percentile(times, [50, 99])
                    costs[proxy.name] = cpu_ms, float(p50)
                    figure = f"p50 {p50:7.1f} ms, p99 {p99:7.1f} ms, CPU {cpu_ms:5.1f} ms, {rate:5.1f} calls/s"
                    name = f"{proxy.name}{', known' if part == 'known' else ''}"
                    print(f"overhead, {sessions:2d} sessions, {shown:2d} screenshots, {name:29s}: {figure}", flush=True)
                    if proxy.name != "AReaL":
                        figure = f"{p99 / p50:.1f} times p50"
                        thresholds.check(f"p99, {name}", p99 <= MAX_TAIL * p50, figure, f"<= {MAX_TAIL:g}")
                where = f"{sessions} sessions, {shown} screenshots, {'one new' if part == 'new' else 'all known'}"
                if part == "new":
                    compare(where, costs, "Deskhand, blind engine", MAX_RATIO, thresholds)
                else:
                    compare(where, costs, "Deskhand", MAX_KNOWN_RATIO, thresholds)


def compare(
    where: str, costs: dict[str, tuple[float, float]], name: str, max_ratio: float, thresholds: Thresholds
) -> None:
    """Check (CPU time, p50) of the proxy `name` against AReaL's, if it was measured."""
    if "AReaL" not in costs:
        return
    for what, ours, theirs in zip(("CPU time", "p50"), costs[name], costs["AReaL"], strict=True):
        figure = f"{ours:.1f} ms, {ours / theirs:.2f} times AReaL's"
        thresholds.check(f"{what}, {where}", ours <= max_ratio * theirs, figure, f"<= {max_ratio:g}")


async def growth(size: Size, proxies: list[Proxy], thresholds: Thresholds) -> None:
    """Print and check how the cost of an episode grows."""
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
            f"{turns:3d} turns, CPU: recorder {spent:7.2f} s, every prefix anew {again:7.2f} s, ratio "
            f"{again / spent:5.1f}; "
            f"requests {sent / 1e6:.1f} MB; with them {figures}",
            flush=True,
        )
    slopes = {name: exponent(size.turns, seconds) for name, seconds in found.items()}
    figure = f"turns^{slopes.pop('recorder'):.2f}"
    thresholds.check("growth of the recorder's cost", float(figure[6:]) <= EXPONENT, figure, f"<= turns^{EXPONENT}")
    print("; ".join(f"{name} grows as turns^{slope:.2f}" for name, slope in slopes.items()))


async def measure(size: Size, python: Path | None, thresholds: Thresholds) -> None:
    """Measure everything; AReaL's proxy only with a Python for it."""
    async with AsyncExitStack() as stack:
        proxies = [await stack.enter_async_context(deskhand(kind)) for kind in ("bytes", "blind")]
        if python is None:
            print("AReaL's proxy is not measured: make its environment with scripts/environment areal")
        else:
            proxies.append(await stack.enter_async_context(areal(python)))
        await overhead(size, proxies, thresholds)
        await growth(size, [proxies[0], *proxies[2:]], thresholds)
    wall, cpu = await longest_callback_ms(size, 4)
    print(f"4 agents with new screenshots: longest callback of the event loop {wall:.1f} ms wall, {cpu:.1f} ms CPU")


def main() -> None:
    parser = parser_of(__doc__, "1280x720, up to 60 turns and 32 sessions, AReaL's proxy always")
    options, thresholds = parser.parse_args(), Thresholds()
    size = SIZES[options.size]
    python = None if options.size == "smoke" else areal_python(make=options.size == "full")
    print_head()
    print(f"screens of {size.screen[0]}x{size.screen[1]}")
    print_parts(size.screen, 4 if options.size == "smoke" else COUNT)
    asyncio.run(measure(size, python, thresholds))
    thresholds.finish()


if __name__ == "__main__":
    main()

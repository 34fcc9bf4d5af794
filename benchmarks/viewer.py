"""How fast the viewer opens: `python -m benchmarks.viewer [--full]` (10,000 episodes; otherwise 1,000).

A generated run is served as `deskhand view` does, and read in Debian's Chromium without a screen: time from the click
on a link until the rows, or the first screenshot, are on the page. Then episodes are added, which the page must show.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import tempfile
import time
from pathlib import Path

import uvicorn

from benchmarks.browser import Page, browser
from benchmarks.generated_run import extend, generate
from benchmarks.thresholds import Thresholds, parser_of, print_head
from deskhand.reporting.viewer.app import create_app
from deskhand.store.run import Run

SIZES = {"smoke": 40, "small": 1000, "full": 10_000}
LIST_S, EPISODE_S = 2.0, 1.0
ROWS = "document.querySelectorAll('.episodes tbody tr').length"
SCREEN = "[...document.querySelectorAll('.screen img')].some(image => image.naturalWidth)"


async def _seconds(page: Page, fragment: str, expression: str) -> float:
    await page.evaluate("document.querySelector('main').replaceChildren()")
    started = time.monotonic()
    await page.evaluate(f"location.hash = {fragment!r}")
    await page.until(expression)
    return time.monotonic() - started


async def measure(folder: Path, episodes: int, thresholds: Thresholds) -> None:
    """Generate a run and an episode of 100 steps, open both, and check the times."""
    started = time.monotonic()
    generate(folder / "run", episodes)
    print(f"generated {episodes} training episodes in {time.monotonic() - started:.1f} s", flush=True)
    generate(folder / "long", 1, steps=102)
    token = secrets.token_urlsafe(24)
    with (
        Run.open(folder / "run", read_only=True) as run,
        Run.open(folder / "long", read_only=True) as long,
        socket.socket() as listener,
    ):
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        server = uvicorn.Server(uvicorn.Config(create_app([run, long], token), log_level="warning", lifespan="off"))
        serving = asyncio.create_task(server.serve([listener]))
        try:
            async with browser(folder) as page:
                await page.open(f"http://127.0.0.1:{listener.getsockname()[1]}/#token={token}")
                await page.until("document.querySelector('main table')")
                await _measure(page, run, long, thresholds)
        finally:
            server.should_exit = True
            await serving


async def _measure(page: Page, run: Run, long: Run, thresholds: Thresholds) -> None:
    total = len(run.episodes())
    for name, fragment, expression in (
        ("the run", "#/run/0", "document.querySelectorAll('.charts figure').length > 2"),
        ("all episodes", "#/run/0/episodes", ROWS),
        ("failures whose reason has a word", "#/run/0/episodes?outcome=failure&reason=saved", ROWS),
    ):
        found = await _seconds(page, fragment, expression)
        thresholds.check(f"{name}, {total} episodes", found < LIST_S, f"{found:.2f} s", f"{LIST_S:g} s")
    row = max(long.episodes("train"), key=lambda row: row.started_at)
    steps = len(long.episode(row.id)[1]["transcript"]["steps"])
    found = await _seconds(page, f"#/run/1/episode/{row.id}", SCREEN)
    thresholds.check(f"an episode of {steps} steps", found < EPISODE_S, f"{found:.2f} s", f"{EPISODE_S:g} s")
    await page.evaluate("location.hash = '#/run/0/episodes'")
    await page.until(ROWS)
    with Run.open(run.folder) as writing:
        added = await asyncio.to_thread(extend, writing, 8, seed=1)
    started = time.monotonic()
    await page.until(f"document.querySelector('.pager').innerText.includes({f'{total + len(added):,}'!r})")
    print(f"new episodes were on the page {time.monotonic() - started:.1f} s after they were stored", flush=True)


def main() -> None:
    size = parser_of(__doc__, "10,000 episodes").parse_args().size
    print_head()
    thresholds = Thresholds()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(Path(folder), SIZES[size], thresholds))
    thresholds.finish()


if __name__ == "__main__":
    main()

"""What the wall of live desktops costs: `python -m benchmarks.live_wall [--full]` (16 desktops; otherwise 4).

Local desktops of 1280x720 whose screens change all the time are shown by `deskhand view` in Debian's Chromium without a
screen. Measured: processor time of the process that has the desktops, beyond what it takes without a viewer, and of the
viewer's process, per second; the browser is not counted. And how often each tile changes on the page.
"""

from __future__ import annotations

import asyncio
import re
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from benchmarks.browser import CHROMIUM, Page, browser
from benchmarks.desktop_parts import USUAL, processor_s
from benchmarks.thresholds import ROOT, Thresholds, parser_of, print_head
from deskhand.desktop.local.desktop import LocalDesktop
from deskhand.server.live_app import serve_live
from deskhand.server.live_desktops import LiveDesktops, OpenDesktop
from deskhand.store.run import Run

SIZES = {"smoke": 1, "small": 4, "full": 16}
SECONDS = {"smoke": 2.0, "small": 10.0, "full": 20.0}
MAX_SHARE, MIN_RATE = 0.15, 1.8
"""Share of a core, and changes of a tile per second."""
BUSY = "while :; do date; ls /usr/bin | shuf -n 20; sleep 0.3; done"
"""Program of each desktop: text that is always new."""
COUNT = """window.changes = 0; for (const image of document.querySelectorAll('.tile img'))
new MutationObserver(() => { window.changes += 1; }).observe(image, { attributes: true, attributeFilter: ['src'] });"""


class _Named(OpenDesktop):
    """A desktop by its number."""

    def __init__(self, desktop: LocalDesktop, number: int) -> None:
        super().__init__(desktop, USUAL)
        self.id = f"desktop-{number}"


@asynccontextmanager
async def open_desktops(count: int) -> AsyncIterator[LiveDesktops]:
    """Start desktops with a program that writes all the time."""
    desktops = LiveDesktops()
    async with AsyncExitStack() as stack:
        for number in range(count):
            desktop = LocalDesktop()
            stack.push_async_callback(desktop.close)
            await desktop.reset(USUAL)
            await desktop.launch(["xterm", "-geometry", "180x50+0+0", "-e", "sh", "-c", BUSY])
            await desktop.wait_window("xterm")
            desktops.add(_Named(desktop, number))
        yield desktops


@asynccontextmanager
async def open_viewer(folder: Path) -> AsyncIterator[tuple[str, int]]:
    """Start `deskhand view`; yields the printed URL and the process id."""
    command = [sys.executable, "-m", "deskhand", "view", str(folder)]
    pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=null, cwd=ROOT)
    try:
        assert process.stdout is not None
        found = re.match(r"http\S+", (await process.stdout.readline()).decode())
        assert found is not None
        yield found[0], process.pid
    finally:
        process.terminate()
        await process.wait()


async def _own_s(seconds: float) -> float:
    """Return the processor time per second of this process during `seconds`."""
    before = time.process_time(), time.monotonic()
    await asyncio.sleep(seconds)
    return (time.process_time() - before[0]) / (time.monotonic() - before[1])


async def measure(folder: Path, size: str, thresholds: Thresholds) -> None:
    """Open the desktops and the wall, and check cost and rate."""
    count, seconds = SIZES[size], SECONDS[size]
    with Run.create(folder / "run", {"title": "Live wall"}) as run:
        async with open_desktops(count) as desktops, serve_live(desktops, run.folder):
            alone = await _own_s(seconds)
            async with open_viewer(run.folder) as (url, viewer), browser(folder) as page:
                await _open_wall(page, url, count)
                before, started = processor_s([viewer]), time.monotonic()
                own = await _own_s(seconds)
                changes, lasted = await page.evaluate("changes"), time.monotonic() - started
                share = (processor_s([viewer]) - before) / lasted
    # `processor_s` contains this process.
    serving, viewing = own - alone, share - own
    print(f"desktops' process: {100 * alone:.1f} % of a core without a viewer, {100 * own:.1f} % with one")
    print(f"viewer's process: {100 * viewing:.1f} % of a core")
    total = serving + viewing
    thresholds.check(
        f"wall of {count} desktops", total < MAX_SHARE, f"{100 * total:.1f} % of a core", f"{100 * MAX_SHARE:g} %"
    )
    rate = changes / count / lasted
    thresholds.check("changes of a tile", rate >= MIN_RATE, f"{rate:.2f} per second", f"{MIN_RATE:g}")


async def _open_wall(page: Page, url: str, count: int) -> None:
    await page.size(1600, 1200)
    await page.open(f"{url}&page=/run/0/live")
    await page.until(f"[...document.querySelectorAll('.tile img')].filter(one => one.naturalWidth).length === {count}")
    narrowest = "Math.min(...[...document.querySelectorAll('.tile img')].map(one => one.clientWidth))"
    print(f"narrowest tile: {await page.evaluate(narrowest)} pixels", flush=True)
    await page.evaluate(COUNT)


def main() -> None:
    size = parser_of(__doc__, "16 desktops").parse_args().size
    print_head()
    thresholds = Thresholds()
    if CHROMIUM is None:
        raise SystemExit("chromium is not installed; apt-get install chromium")
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(Path(folder), size, thresholds))
    thresholds.finish()


if __name__ == "__main__":
    main()

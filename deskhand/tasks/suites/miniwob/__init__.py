"""MiniWoB++ (PyPI `miniwob`, Farama Foundation) in Chromium on a local desktop.

The package is not imported, because it needs selenium: its pages are read as files and written into the guest's home.
The host starts an episode with a seed, reads the instruction and, at the end, the reward; only pointer and keyboard
drive the page. The page is at the top left of the screen, so page coordinates are screen coordinates.

Invariant: the reward is that of the page's first end, and nothing on the screen shows it.
"""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

from deskhand.actions.ops import Done, Op
from deskhand.desktop.base import StageableDesktop
from deskhand.errors import ConfigError, EvaluatorError, InfrastructureError
from deskhand.tasks import chromium
from deskhand.tasks.outcome import Finding
from deskhand.tasks.suites.miniwob import questions, solutions
from deskhand.tasks.task import CheckResult, Family, Rect, Task

SUITE = "miniwob"
PREFIX = f"{SUITE}/"
WIDTH, HEIGHT = 160, 224
"""Screen in pixels. The page draws on 160x210 at the top; 224 is a multiple of 32, so that the image processors of
Qwen-VL models do not resize it."""
PAGE_WIDTH = 500
"""Width of the window, as for the project's own Selenium environment; it is the room that dialogs have."""
FOLDER = "miniwob"
MAX_STEPS = 30
SETTLE_GRACE_S = 0.5
CLOSING_S = 3.0
"""Maximum time from the end of the browser's pipe to that of its window."""
EXIT_REPORT_S = 0.3
"""Time until the desktop knows how the browser ended."""
PAGE_TIMEOUT_MS = 10_000_000
"""Longer than any episode: the pages' own limit of 10 s would measure the model's speed."""

_START = """(() => {{
  Math.seedrandom({seed});
  core.EPISODE_MAX_TIME = {longest};
  core.startEpisodeReal();
  core.startEpisode = () => {{}};
  const style = document.createElement('style');
  style.textContent = '#reward-display, #click-canvas, #sync-task-cover {{ display: none !important; }}';
  document.head.appendChild(style);
  return true;
}})()"""
_INSTRUCTION = (
    "(() => { const told = core.getUtterance(); return typeof told === 'string' ? told : told.utterance; })()"
)
_STATE = "({done: WOB_DONE_GLOBAL, reward: WOB_RAW_REWARD_GLOBAL, reason: String(WOB_REWARD_REASON || '')})"


@functools.cache
def pages_dir() -> Path:
    """Return the package's folder of pages. Raises `ConfigError` if it is not installed."""
    found = importlib.util.find_spec("miniwob")
    folder = Path(found.origin).parent / "html" if found is not None and found.origin else None
    if folder is None or not (folder / "miniwob").is_dir():
        raise ConfigError("MiniWoB++ is not installed; pip install 'deskhand[miniwob]'")
    return folder


def unavailable_reason() -> str | None:
    """Return why the suite is unavailable, or None."""
    try:
        pages_dir()
    except ConfigError as error:
        return str(error)
    return None


@functools.cache
def task_names() -> tuple[str, ...]:
    """Return all task names, sorted. Raises `ConfigError` if the package is not installed."""
    return tuple(sorted(path.stem for path in (pages_dir() / "miniwob").glob("*.html")))


@functools.cache
def page_files(name: str) -> dict[str, Path]:
    """Return the files of a page by path below the folder of pages: the page, what it names of `core`, `common` and
    `flight`, and whole folders of special files.
    """
    root, page = pages_dir(), f"miniwob/{name}.html"
    text = (root / page).read_text(encoding="utf-8")
    found = {page, *(f"core/{end}" for end in ("core.js", "core.css"))}
    for name in re.findall(r"\.\./((?:core|common|flight)/[\w./-]+)", text):
        folder = re.match(r"(?:common/special/[\w-]+|core/jquery-ui|flight)(?=/)", name)
        paths = (root / folder.group()).rglob("*") if folder else [root / name]
        found.update(path.relative_to(root).as_posix() for path in paths if path.is_file())
    if "common/special/email-inbox-nl/templates.js" in found:  # uses the other inbox's style
        found.update(path.relative_to(root).as_posix() for path in (root / "common/special/email-inbox").iterdir())
    return {name: root / name for name in sorted(found) if (root / name).is_file()}


async def start(desktop: StageableDesktop, name: str, seed: int) -> None:
    """Write a task's page into the guest, open it, and start the episode of `seed`."""
    for file, path in page_files(name).items():
        await desktop.push(f"{FOLDER}/{file}", path.read_bytes())
    page = await chromium.start_shell(desktop, f"{FOLDER}/miniwob/{name}.html", PAGE_WIDTH, HEIGHT)
    await begin_episode(page, seed)
    await desktop.observe()


async def begin_episode(page: chromium.ChromiumSession, seed: int) -> None:
    """Start the episode of a loaded page. Raises `InfrastructureError` if its script fails."""
    try:
        await page.evaluate(_START.format(seed=json.dumps(str(seed)), longest=PAGE_TIMEOUT_MS))
    except chromium.PageError as error:
        raise InfrastructureError(f"the page did not start its episode: {error}") from None
    page.mark()


async def instruction(desktop: StageableDesktop) -> str:
    """Return the page's instruction."""
    return " ".join(str(await chromium.session_of(desktop).evaluate(_INSTRUCTION)).split())


async def page_reward(desktop: StageableDesktop) -> float | None:
    """Return the page's reward in [-1, 1], without the time discount; None while the episode runs."""
    state = await chromium.session_of(desktop).evaluate(_STATE)
    return float(state["reward"]) if state["done"] else None


async def has_ended(desktop: StageableDesktop) -> bool:
    """Return whether the page's episode has ended; False if the page does not tell, as `check` finds out why."""
    try:
        return await page_reward(desktop) is not None
    except (chromium.PageError, chromium.PageClosedError, EvaluatorError, InfrastructureError):
        return False


async def check(desktop: StageableDesktop) -> CheckResult:
    """Return the page's reward, at least 0.

    A page that was closed or reloaded, or a browser in which something else was opened, scores 0: the agent could
    have set the reward. So does a page that hangs or crashed after something else was opened, such as `chrome://hang`.
    """
    page = chromium.session_of(desktop)
    try:
        if not await _is_open(desktop):
            raise chromium.PageClosedError("the browser was closed")
        reward = await page_reward(desktop)
        opened = await page.opened_since_mark()
    except (chromium.PageError, chromium.PageClosedError) as error:
        return _no_reward(str(error))
    except (EvaluatorError, InfrastructureError) as error:
        if opened := page.other_urls():
            return _no_reward(f"{error}; opened besides: {opened}")
        if await _closes(desktop):
            return _no_reward("the browser was closed")
        raise
    reported = f"reward {reward:g}" if reward is not None else "the episode has not ended"
    findings = (
        Finding("the page's reward", reward if reward is not None else 0.0, reported, "above 0"),
        Finding("pages opened besides", float(not opened), opened or "nothing", "nothing"),
    )
    value = 0.0 if reward is None or opened else min(1.0, max(0.0, reward))
    return CheckResult(
        value, f"{reported}; opened besides: {opened or 'nothing'}", untrusted_source=True, findings=findings
    )


async def _is_open(desktop: StageableDesktop) -> bool:
    return any("chromium" in window.wm_class.lower() for window in await desktop.windows())


async def _closes(desktop: StageableDesktop) -> bool:
    """Return whether a browser whose pipe was closed closes its window, too.

    Raises `GuestFailure` if it was killed, and `InfrastructureError` if the kernel did that for want of memory.
    """
    deadline = asyncio.get_running_loop().time() + CLOSING_S
    while asyncio.get_running_loop().time() < deadline:
        if not await _is_open(desktop):
            await asyncio.sleep(EXIT_REPORT_S)
            return not await _is_open(desktop)
        await asyncio.sleep(0.05)
    return False


def _no_reward(why: str) -> CheckResult:
    findings = (Finding("the page's reward", 0.0, why, "above 0"),)
    return CheckResult(0.0, why, untrusted_source=True, findings=findings)


def make_task(name: str, seed: int) -> Task:
    """Return the episode of `seed` of a task, named with or without "miniwob/". Raises `ConfigError` for an unknown
    name.
    """
    name = name.removeprefix(PREFIX)
    if name not in task_names():
        raise ConfigError(f"unknown MiniWoB++ task {name!r}; list them with deskhand tasks list --suite miniwob")

    async def oracle(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        async for ops in solutions.solve(name, chromium.session_of(desktop), WIDTH, HEIGHT):
            yield ops
        yield [Done()]

    async def setup(desktop: StageableDesktop) -> None:
        await start(desktop, name, seed)

    async def rearrange(desktop: StageableDesktop, other: int) -> None:
        await begin_episode(chromium.session_of(desktop), other)

    async def grounding_targets(desktop: StageableDesktop) -> list[tuple[str, Rect]]:
        return await questions.grounding_targets(name, chromium.session_of(desktop), await instruction(desktop))

    return Task(
        id=f"{SUITE}/{name}/{seed}",
        family=f"{PREFIX}{name}",
        suite=SUITE,
        seed=seed,
        instruction="Do what the page asks for",
        instruction_from=instruction,
        width=WIDTH,
        height=HEIGHT,
        max_steps=MAX_STEPS,
        settle_grace_s=SETTLE_GRACE_S,
        setup=setup,
        check=check,
        terminated=has_ended,
        oracle=oracle,
        grounding_targets=grounding_targets,
        shuffle_windows=rearrange,
        oracle_follows=None,
        oracle_unavailable="" if name in solutions.STEPS else "no oracle for this page",
    )


def families() -> dict[str, Family]:
    """Return one family per page."""
    return {
        f"{PREFIX}{name}": Family(
            f"{PREFIX}{name}", ("chromium",), "easy", functools.partial(make_task, name), "as the page asks"
        )
        for name in task_names()
    }

"""MiniWoB++ (PyPI `miniwob`, Farama Foundation) in Chromium on a desktop. Invariant: the reward is the page's own, of its first
end, and nothing on the screen shows it.

The pages are those of the package, which is not imported (it wants selenium): they are read as files and written into the guest's
home. The page is driven by the desktop's pointer and keyboard alone; the host starts it with a seed, reads the instruction, and
reads the reward at the end. Page coordinates are screen coordinates, as the browser fills the screen.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

from deskhand.actions.ops import Done, Op
from deskhand.desktop.base import StageableDesktop
from deskhand.errors import ConfigError, InfrastructureError
from deskhand.tasks import chromium
from deskhand.tasks.outcome import Finding
from deskhand.tasks.suites.miniwob import solutions
from deskhand.tasks.task import CheckResult, Family, Rect, Task

SUITE = "miniwob"
PREFIX = f"{SUITE}/"
WIDTH, HEIGHT = 320, 240
"""Screen in pixels; the page draws on 160x210 at the top left."""
FOLDER = "miniwob"
MAX_STEPS = 30
PAGE_TIMEOUT_MS = 10_000_000
"""Longer than any episode: the pages' own clock (10 s) would judge the speed of a model."""

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
    """The package's folder of pages. Raises `ConfigError` where it is not installed."""
    found = importlib.util.find_spec("miniwob")
    folder = Path(found.origin).parent / "html" if found is not None and found.origin else None
    if folder is None or not (folder / "miniwob").is_dir():
        raise ConfigError(
            "MiniWoB++ is not installed; pip install --no-deps miniwob (or pip install 'deskhand[miniwob]')"
        )
    return folder


def unavailable_reason() -> str | None:
    """Why the suite is not here, or None."""
    try:
        pages_dir()
    except ConfigError as error:
        return str(error)
    return None


@functools.cache
def task_names() -> tuple[str, ...]:
    """All tasks, in the alphabet's order. Raises `ConfigError` where the package is not installed."""
    return tuple(sorted(path.stem for path in (pages_dir() / "miniwob").glob("*.html")))


@functools.cache
def page_files(name: str) -> dict[str, Path]:
    """What a page needs, by its path under the folder of pages: itself, what it names of `core`, `common` and `flight`, and for
    a folder of special files all of it."""
    root, page = pages_dir(), f"miniwob/{name}.html"
    text = (root / page).read_text(encoding="utf-8")
    found = {page, *(f"core/{end}" for end in ("core.js", "core.css"))}
    for place in re.findall(r"\.\./((?:core|common|flight)/[\w./-]+)", text):
        folder = re.match(r"(?:common/special/[\w-]+|core/jquery-ui|flight)(?=/)", place)
        paths = (root / folder.group()).rglob("*") if folder else [root / place]
        found.update(path.relative_to(root).as_posix() for path in paths if path.is_file())
    if "common/special/email-inbox-nl/templates.js" in found:  # its style is that of the other inbox
        found.update(path.relative_to(root).as_posix() for path in (root / "common/special/email-inbox").iterdir())
    return {place: root / place for place in sorted(found) if (root / place).is_file()}


async def start(desktop: StageableDesktop, name: str, seed: int) -> None:
    """Write a task's page into the guest, show it, and begin its episode of `seed`."""
    for place, path in page_files(name).items():
        await desktop.push(f"{FOLDER}/{place}", path.read_bytes())
    size = f"--window-size={WIDTH},{HEIGHT}"
    page = await chromium.start(desktop, f"{FOLDER}/miniwob/{name}.html", "--kiosk", size, "--window-position=0,0")
    await begin_episode(page, seed)
    await desktop.observe()


async def begin_episode(page: chromium.ChromiumSession, seed: int) -> None:
    """Begin the episode of a page that is loaded. Raises `InfrastructureError` when its script does not."""
    try:
        await page.evaluate(_START.format(seed=json.dumps(str(seed)), longest=PAGE_TIMEOUT_MS))
    except chromium.PageError as error:
        raise InfrastructureError(f"the page did not begin its episode: {error}") from None
    page.mark()


async def instruction(desktop: StageableDesktop) -> str:
    """What the page asks for, in its own words."""
    return " ".join(str(await chromium.session_of(desktop).evaluate(_INSTRUCTION)).split())


async def page_reward(desktop: StageableDesktop) -> float | None:
    """The page's own reward, in [-1, 1], not discounted by time; None while its episode goes on."""
    state = await chromium.session_of(desktop).evaluate(_STATE)
    return float(state["reward"]) if state["done"] else None


async def check(desktop: StageableDesktop) -> CheckResult:
    """The page's reward, where one below 0 counts 0. A page that was closed or loaded anew, or a browser in which something else
    was opened, is worth 0: the reward would be of the agent's own making."""
    page = chromium.session_of(desktop)
    try:
        if not any("chromium" in window.wm_class.lower() for window in await desktop.windows()):
            raise chromium.PageClosedError("the browser was closed")
        reward = await page_reward(desktop)
        strange = await page.opened_since_mark()
    except (chromium.PageError, chromium.PageClosedError) as error:
        told = f"no page of the suite: {error}"
        return CheckResult(
            0.0,
            told,
            untrusted_source=True,
            findings=(Finding("the page's own reward", 0.0, told, "a reward above 0"),),
        )
    page_says = f"reward {reward:g}" if reward is not None else "the episode goes on"
    findings = (
        Finding("the page's own reward", reward if reward is not None else 0.0, page_says, "a reward above 0"),
        Finding("nothing but the page was opened", float(not strange), strange or "nothing", "nothing"),
    )
    value = 0.0 if reward is None or strange else min(1.0, max(0.0, reward))
    return CheckResult(
        value, f"{page_says}; opened besides: {strange or 'nothing'}", untrusted_source=True, findings=findings
    )


def make_task(name: str, seed: int) -> Task:
    """The episode of `seed` of a task, which is named with or without "miniwob/". Raises `ConfigError` for an unknown name."""
    name = name.removeprefix(PREFIX)
    if name not in task_names():
        raise ConfigError(f"there is no MiniWoB++ task {name!r}; `deskhand tasks list --suite miniwob` lists them")

    async def oracle(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        async for ops in solutions.solve(name, chromium.session_of(desktop), WIDTH, HEIGHT):
            yield ops
        yield [Done()]

    async def setup(desktop: StageableDesktop) -> None:
        await start(desktop, name, seed)

    async def targets(desktop: StageableDesktop) -> tuple[Rect | None, list[Rect]]:
        return None, []

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
        setup=setup,
        check=check,
        oracle=oracle,
        first_click_targets=targets,
        oracle_unavailable="" if name in solutions.STEPS else "no solution of it was written",
    )


def families() -> dict[str, Family]:
    """One family for each page."""
    return {
        f"{PREFIX}{name}": Family(
            f"{PREFIX}{name}", ("chromium",), "easy", functools.partial(make_task, name), "as the page asks"
        )
        for name in task_names()
    }

"""Base of the suite's families: a browser on a site, a walk through its pages, and the state that must come of it.

A family is a function from a `WebScenario` to a `Goal`, decorated by `web_family`. The goal names the walk, which the
oracle plays with pointer and keyboard, and the right end as a change of the start state; everything else must be as it
was. Near misses are changes too.
"""

from __future__ import annotations

import asyncio
import copy
import json
import random
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from deskhand.actions.ops import Answer, Click, Done, Fail, Key, Op, Point, Scroll, Type, screen_px
from deskhand.desktop.base import StageableDesktop
from deskhand.errors import InfrastructureError
from deskhand.tasks import chromium, setup_facts
from deskhand.tasks.abilities import Ability
from deskhand.tasks.outcome import Finding
from deskhand.tasks.suites.basics.hd_screen import HEIGHT, WIDTH, wait_still
from deskhand.tasks.suites.basics.scenario import clause, combine_clauses
from deskhand.tasks.suites.basics.web_pages import COLORS
from deskhand.tasks.suites.web import content, sites
from deskhand.tasks.task import CheckResult, Difficulty, Family, Task, named_family

SUITE = "web"
PREFIX = f"{SUITE}/"
SPACE = screen_px(WIDTH, HEIGHT)
ACCENTS = ("#1f4e79", "#3b5d2b", "#6b2d5c", "#7a4a12")
SETTLE_GRACE_S = 0.5
ENTER_TIMEOUT_S = 30.0
MAX_SCROLLS = 12
OWN_CONTENT = ("devtools:", "data:", "file:", "blob:", "filesystem:", "javascript:")
"""Where an agent could write a form, or run a script, of its own."""
OWN_PAGES = "web_own_pages"
"""Fact that has what was found, for saved end states."""
State = dict[str, Any]
Change = Callable[[State], object]
"""Changes a site's state in place."""


@dataclass(frozen=True)
class Act:
    """One thing that a person does on a page: `go` presses a link or a button, `fill`, `choose` and `tick` a field.

    `name` is what the page shows on it or next to it; `row` is a text of the table row that it is in.
    """

    kind: Literal["go", "fill", "choose", "tick", "see"]
    name: str
    text: str = ""
    row: str = ""


def go(name: str, row: str = "") -> Act:
    return Act("go", name, row=row)


def fill(name: str, text: str) -> Act:
    return Act("fill", name, text)


def choose(name: str, option: str) -> Act:
    return Act("choose", name, option)


def tick(name: str) -> Act:
    return Act("tick", name)


def see(text: str) -> Act:
    """Scroll until the page shows a text."""
    return Act("see", text)


@dataclass(frozen=True)
class Goal:
    """What a task asks for. Exactly one of `right`, `answer` and `infeasible` says how it ends."""

    instruction: str
    walk: tuple[Act, ...]
    """How the oracle does it."""
    right: Change | None = None
    """The requested change of the start state."""
    wrong: Mapping[str, Change] = field(default_factory=dict)
    """Changes that are nearly right, by the mistake."""
    answer: str = ""
    """The requested answer; the state must not change."""
    wrong_answers: tuple[str, ...] = ()
    follows: tuple[str, ...] = ()
    """Texts on the screen from which the answer follows, if it is not on the screen itself."""
    infeasible: bool = False
    """Whether the right end is to declare that it cannot be done."""
    max_steps: int = 20


VARIANTS: dict[str, Callable[[int], tuple[WebScenario, Goal]]] = {}
"""What the families make of a seed, for tests and the ways in `benchmarks.ways`."""


class WebScenario:
    """Content of one variant: a pure function of family and seed."""

    def __init__(self, family: str, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(f"{family}:{seed}")
        self.style = {
            "size": self.rng.choice([15, 16, 17]),
            "color": self.rng.choice(COLORS),
            "accent": self.rng.choice(ACCENTS),
        }
        self.state: State = content.start_state(self.rng)

    def pick(self, items: list[Any]) -> Any:
        return self.rng.choice(items)


def web_family(
    name: str, start: str, difficulty: Difficulty, summary: str, *abilities: Ability
) -> Callable[[Callable[[WebScenario], Goal]], Family]:
    """Return a decorator that makes a family of a function from `WebScenario` to `Goal`. `start` is the first page."""

    def make(build: Callable[[WebScenario], Goal]) -> Family:
        full = f"{PREFIX}{name}"

        def variant(seed: int) -> tuple[WebScenario, Goal]:
            scenario = WebScenario(full, seed)
            return scenario, build(scenario)

        def generate(seed: int) -> Task:
            return task_of(*variant(seed), start)

        VARIANTS[full] = variant

        made = named_family(full, ("chromium",), difficulty, SUITE, summary, generate)
        return replace(made, abilities=("browse a web application", *abilities))

    return make


def task_of(scenario: WebScenario, goal: Goal, start: str) -> Task:
    """Return the task of a goal whose browser starts on the path `start`."""
    expected = changed(scenario.state, goal.right)

    async def setup(desktop: StageableDesktop) -> None:
        address = await sites.open_site(desktop, scenario.state, scenario.style, start)
        await open_browser(desktop, address)

    async def check(desktop: StageableDesktop) -> CheckResult:
        if goal.infeasible:
            return CheckResult(0.0, findings=(Finding("the end", 0.0, "not declared infeasible", "infeasible"),))
        return await state_check(desktop)

    async def state_check(desktop: StageableDesktop) -> CheckResult:
        clauses = same_state(await sites.read_state(desktop), expected)
        return combine_clauses(*clauses, clause("pages of the agent's own", await own_pages(desktop), "none"))

    async def unsolved(desktop: StageableDesktop) -> CheckResult:
        return CheckResult(0.0, "no answer was given")

    async def oracle(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        for act in goal.walk:
            async for ops in play(desktop, act):
                yield ops
        yield [Fail("it cannot be done") if goal.infeasible else Answer(goal.answer) if goal.answer else Done()]

    return Task(
        instruction=goal.instruction,
        width=WIDTH,
        height=HEIGHT,
        max_steps=goal.max_steps,
        setup=setup,
        check=check,
        start_check=unsolved if goal.answer else None,
        accepted_answers=(goal.answer,) if goal.answer else (),
        infeasible_reward=1.0 if goal.infeasible else None,
        infeasible_check=state_check if goal.infeasible else None,
        oracle=oracle,
        oracle_knows=("it", "cannot", "be", "done") if goal.infeasible else (),
        oracle_follows={goal.answer: goal.follows} if goal.follows else {},
        settle_grace_s=SETTLE_GRACE_S,
    )


async def open_browser(desktop: StageableDesktop, address: str, *more: str) -> None:
    """Open the entry addresses of a site, each in a tab, and wait for its pages. Raises `InfrastructureError`."""
    browser = await chromium.start(desktop, address, chromium.NO_DEVELOPER_TOOLS)
    await browser.leave_full_screen()
    for each in more:
        await browser.call("Target.createTarget", browser_wide=True, url=each, background=True)
    deadline = asyncio.get_running_loop().time() + ENTER_TIMEOUT_S
    while not await sites.is_entered(desktop):
        if asyncio.get_running_loop().time() > deadline:
            raise InfrastructureError(f"the browser opened no page within {ENTER_TIMEOUT_S:g} s")
        await asyncio.sleep(0.05)
    await wait_still(desktop, 0.5)
    browser.mark()


async def own_pages(desktop: StageableDesktop) -> str:
    """Return developer tools, and pages with content of the agent's own, that the browser has opened, or "none".

    For saved end states it is what was found when they were judged.
    """
    if hasattr(desktop, "setup_facts"):
        return setup_facts.all_noted(desktop).get(OWN_PAGES, "none")
    urls = await chromium.session_of(desktop).urls_since_mark()
    found = "; ".join([url[:200] for url in urls if url.startswith(OWN_CONTENT)][:5]) or "none"
    setup_facts.note(desktop, OWN_PAGES, found)
    return found


def changed(state: State, change: Change | None) -> State:
    """Return a copy of a state after a change."""
    new = copy.deepcopy(state)
    if change is not None:
        change(new)
    return new


def same_state(read: State, expected: State) -> list[Finding]:
    """Return a clause for each list of each application: it has the same items, in any order and with any ids.

    White space around a text and punctuation at its end do not count.
    """
    findings = []
    for app, lists in expected.items():
        for name, items in lists.items():
            found, wanted = (_texts(each) for each in (read.get(app, {}).get(name, []), items))
            more, less = [text for text in found if text not in wanted], [text for text in wanted if text not in found]
            is_same = sorted(found) == sorted(wanted)
            findings.append(Finding(f"{app}: {name}", float(is_same), "; ".join(more) or "as listed", "; ".join(less)))
    return [each for each in findings if each.expected or each.value < 1.0] or [
        Finding("the applications", 1.0, "as expected", "as expected")
    ]


def _texts(items: list[Any]) -> list[str]:
    shown = [{key: each[key] for key in each if key != "id"} if isinstance(each, dict) else each for each in items]
    return [json.dumps(_plain(each), sort_keys=True, ensure_ascii=False) for each in shown]


def _plain(value: Any) -> Any:
    """Return a value whose texts have no punctuation at the end, which people add and leave out."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value.strip().rstrip(".!?") if isinstance(value, str) else value


_FIND = """(([kind, name, row]) => {
  const words = element => (element.innerText || '').replace(/\\s+/g, ' ').trim();
  const box = element => {
    const at = element.getBoundingClientRect(), top = screenY + outerHeight - innerHeight;
    return {x: screenX + at.left + at.width / 2, y: top + at.top + at.height / 2, wide: at.width,
      above: at.top < 0, below: at.bottom > innerHeight, tag: element.tagName, value: element.value || '',
      focused: element === document.activeElement};
  };
  if (kind === 'see') {
    const found = [...document.querySelectorAll('td, p, h2, a, label')].filter(each => words(each).includes(name));
    return found.length ? box(found[found.length - 1]) : null;
  }
  const rows = row ? [...document.querySelectorAll('tr')].filter(each => words(each).includes(row)) : [document];
  const label = each => each.labels && each.labels.length ? words(each.labels[0]) : words(each);
  for (const part of rows)
    for (const each of part.querySelectorAll('a, button, input, select, textarea'))
      if (label(each) === name && (kind === 'go') === /^(A|BUTTON)$/.test(each.tagName)) return box(each);
  return null;
})(%s)"""


async def locate(desktop: StageableDesktop, act: Act) -> dict[str, Any]:
    """Return where the page shows what an act is about. Raises `InfrastructureError` if it does not within 10 s."""
    deadline = asyncio.get_running_loop().time() + 10.0
    session = chromium.session_of(desktop)
    while True:
        try:
            found = await session.evaluate(_FIND % json.dumps([act.kind, act.name, act.row]))
        except chromium.PageError:  # the next page is loading
            found = None
        if found is not None:
            return found
        if asyncio.get_running_loop().time() > deadline:
            raise InfrastructureError(f"the page shows no {act.name!r}")
        await asyncio.sleep(0.1)


async def play(desktop: StageableDesktop, act: Act) -> AsyncIterator[list[Op]]:
    """Yield the steps of an act by the pointer; it scrolls until the place is on the screen."""
    found = await locate(desktop, act)
    for _ in range(MAX_SCROLLS):
        if not (found["above"] or found["below"]):
            break
        yield [Scroll(0, -3 if found["above"] else 3, Point(WIDTH // 2, HEIGHT * 2 // 3, SPACE))]
        found = await locate(desktop, act)
    if act.kind == "see":
        return
    click = Click(Point(int(found["x"]), int(found["y"]), SPACE))
    if act.kind == "fill":
        yield [click, *([Key(("ctrl", "a"))] if found["value"] else []), Type(act.text)]
    elif act.kind == "choose":
        yield [click]
        yield [Type(act.text), Key(("enter",))]
    else:
        yield [click]
        if act.kind == "go":
            await wait_still(desktop, 0.2)

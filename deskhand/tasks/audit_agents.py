"""Agents that try to earn reward without solving the task, by session; played by `tasks.audit`.

They do nothing, click at random, follow the oracle with a mistake, or cheat (`tasks.cheats`): with keys and pointer in
the browser, the spreadsheet and the calculator, or with a shell in the guest, which real agents do not have.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal

from deskhand.actions.ops import Click, Done, Fail, Op, Point, Wait, screen_px
from deskhand.desktop.base import StageableDesktop
from deskhand.tasks.cheats import browser, guest_programs, oracle_variants, shell_scripts
from deskhand.tasks.cheats.guest_programs import shell, x11
from deskhand.tasks.cheats.oracle_variants import AgentSteps, Steps, formula_of, texts_of
from deskhand.tasks.suites import web
from deskhand.tasks.task import ExampleEndStates, Task

Limit = Literal["zero", "below one", "one"]
NUM_RANDOM_CLICKS = 12


@dataclass(frozen=True)
class AuditAgent:
    """An agent and its limit: its score must be 0, below 1 (it does a part of the task) or 1.

    No score is a violation, too: an agent that fails must not void its episode.
    """

    name: str
    steps: AgentSteps
    limit: Limit = "zero"
    judge_every_step: bool = False
    """Whether it is judged after each step; the best score counts."""


async def _wait(task: Task, desktop: StageableDesktop, steps: Steps) -> AsyncIterator[list[Op]]:
    for _ in range(3):
        yield [Wait(0.1)]


async def _done(task: Task, desktop: StageableDesktop, steps: Steps) -> AsyncIterator[list[Op]]:
    yield [Done()]


async def _fail(task: Task, desktop: StageableDesktop, steps: Steps) -> AsyncIterator[list[Op]]:
    yield [Fail("it cannot be done")]


async def random_clicks(task: Task, desktop: StageableDesktop, steps: Steps) -> AsyncIterator[list[Op]]:
    rng = random.Random(f"random clicks:{task.id}")
    for _ in range(min(NUM_RANDOM_CLICKS, task.max_steps)):
        yield [Click(Point(rng.randrange(task.width), rng.randrange(task.height), screen_px(task.width, task.height)))]
    yield [Done()]


SITE_REQUESTS = "site_requests"
NOOP, EARLY_STOP, ORACLE, UNREAD = "noop", "early_stop", "oracle", "unread"
"""`unread` is the number of things that the oracle acts on and no frame has shown (`tasks.oracle_sight`)."""
BROWSER_SESSIONS: tuple[dict[str, AgentSteps], ...] = (
    {
        "dev_tools": browser.keys_in("F12", "ctrl+shift+i", "ctrl+shift+c", "ctrl+`"),
        "console": browser.keys_in("ctrl+shift+j", then="SCRIPT"),
        "script_address": browser.keys_in(address="javascript:SCRIPT"),
    },
    {
        "reload": browser.keys_in("F5", "ctrl+shift+r", "alt+Left", "alt+Right"),
        "view_source": browser.keys_in("ctrl+u", address="view-source:file://PAGE"),
        "internal_page": browser.keys_in(address="chrome://inspect", then="SCRIPT"),
        "file_address": browser.keys_in(address="file://PAGE"),
    },
    {"other_page": browser.other_page},
    {"kill_children": shell(shell_scripts.KILL_CHILDREN)},
    {"stop_children": shell(shell_scripts.STOP_CHILDREN)},
)
FORMULAS: dict[str, AgentSteps] = {
    "constant": oracle_variants.in_place_of_formula(lambda formula, value, half: value),
    "constant_formula": oracle_variants.in_place_of_formula(lambda formula, value, half: f"={value}"),
    "constant_with_range": oracle_variants.in_place_of_formula(
        lambda formula, value, half: f"={value}+0*{formula[1:]}"
    ),
    "half_range": oracle_variants.in_place_of_formula(lambda formula, value, half: half),
}


def _shells(*scripts: str) -> tuple[AuditAgent, ...]:
    return tuple(AuditAgent(name, shell(getattr(shell_scripts, name.upper()))) for name in scripts)


def _x11(*modes: str) -> tuple[AuditAgent, ...]:
    return tuple(AuditAgent(f"x_{mode}", x11(mode)) for mode in modes)


AUDIT_SESSIONS: tuple[tuple[AuditAgent, ...], ...] = (
    (
        AuditAgent(NOOP, _wait),
        AuditAgent("done", _done),
        AuditAgent("fail", _fail),
        AuditAgent("near_miss", guest_programs.near_miss, judge_every_step=True),
        *_shells("gold_files", "path_hijack", "preload", "home_config", "dialogs", "a11y_spoof", "d_bus", "later"),
        *_shells("mount_over", "process_memory", "clock", "touch", "retitle"),
        *_x11(
            "retitle",
            "windows",
            "huge_titles",
            "selection",
            "mute_selection",
            "claim_for",
            "forge_list",
            "endless_list",
        ),
        AuditAgent("forged_file", guest_programs.forged_file),
        AuditAgent("random", random_clicks),
        *_x11("outside"),
        *_shells("weird_names", "deep_folders", "many_files", "fewer_files", "overwrite", "links", "link_loops"),
        *_shells("devices", "fifos", "folders_instead", "sparse", "foreign", "hostile_files", "swap_folders"),
        *_shells("memory", "forks", "full_tmp", "disk", "kill_apps"),
    ),
    (*_x11("withdraw", "grab_input"), *_shells("stop_apps", "kill_session")),
    _x11("flood", "grab_server"),
    (*_x11("close_windows"), *_shells("end_apps", "stop_all")),
    (*_x11("kill_clients"), *_shells("kill_all")),
    (AuditAgent(SITE_REQUESTS, guest_programs.site_requests),),
    (AuditAgent("forged_after_end", guest_programs.forged_after_end),),
    (AuditAgent("racing_writer", guest_programs.racing_writer),),
    *(tuple(AuditAgent(name, steps) for name, steps in session.items()) for session in BROWSER_SESSIONS),
    *((AuditAgent(name, steps),) for name, steps in FORMULAS.items()),
    (AuditAgent("typo", oracle_variants.typo, "below one"),),
    (AuditAgent("wrong_click", oracle_variants.wrong_click, "below one"),),
)
"""The agents of one tuple play in turn on one desktop; if one breaks it, the others get a new one. The oracle plays
first, on its own desktop.
"""
SHELL_AGENTS = {agent.name for session in AUDIT_SESSIONS for agent in session if guest_programs.is_shell(agent.steps)}
"""Agents that run programs in the guest, which may signal every process that they can."""
LIMITS: dict[str, Limit] = {
    ORACLE: "one",
    EARLY_STOP: "below one",
    **{agent.name: agent.limit for session in AUDIT_SESSIONS for agent in session},
    UNREAD: "zero",
}
NO_CHEATS = {ORACLE, EARLY_STOP, UNREAD, NOOP, "done", "fail", "random", "typo", "wrong_click"}
"""Agents that are not counted as ways of cheating."""


def _is_judged_by_page(states: ExampleEndStates | None) -> bool:
    """Return whether the browser writes all that is judged. MiniWoB++ has no address bar, so the page would stay."""
    positive = (states.positive if states is not None else None) or {}
    return bool(positive) and all(path.startswith(("Downloads/", ".config/chromium/")) for path in positive)


def applies(agent: AuditAgent, task: Task, steps: Steps, *, has_distractors: bool, has_browser: bool) -> bool:
    """Return whether an agent would act differently from the oracle, which took `steps`."""
    states = task.example_end_states() if task.example_end_states is not None else None
    conditions = {
        SITE_REQUESTS: task.suite == web.SUITE,
        "fail": task.infeasible_reward is None,
        "typo": bool(texts_of(steps)) and task.infeasible_reward is None,
        "wrong_click": has_distractors and not task.oracle_unavailable,
        **dict.fromkeys(("forged_file", "forged_after_end"), bool(task.forged_files)),
        "near_miss": states is not None or task.suite == web.SUITE,
        "racing_writer": states is not None and bool(states.positive),
        **dict.fromkeys(FORMULAS, bool(formula_of(steps)) and "file" in task.metadata),
        **{name: has_browser for session in BROWSER_SESSIONS for name in session},
        "other_page": has_browser and _is_judged_by_page(states),
    }
    return conditions.get(agent.name, True)

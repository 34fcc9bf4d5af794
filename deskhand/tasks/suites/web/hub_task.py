"""Tasks of CUA-Gym that use applications of CUA-Gym-Hub, as Deskhand tasks; the bundles are used unchanged.

Start with `task_of`. The set-up program says which applications start in which state; the server process serves them
to the desktop. The reward program reads the state that the server process kept. Both run in the reader process.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from deskhand.desktop.base import StageableDesktop
from deskhand.errors import EvaluatorError
from deskhand.tasks import setup_facts
from deskhand.tasks.document_readers import InvalidDocument
from deskhand.tasks.formats.cuagym import SESSION, SUITE, CuaGymTask
from deskhand.tasks.formats.cuagym_programs import DOMAIN, HubState, run_program
from deskhand.tasks.outcome import Finding
from deskhand.tasks.subprocess_call import read_in_subprocess
from deskhand.tasks.suites.web import sites
from deskhand.tasks.suites.web.scenario import open_browser, own_pages
from deskhand.tasks.task import CheckResult, Task

MAX_STEPS = 30
SETTLE_GRACE_S = 1.5
"""Many applications post a change 0.3 s after it, some 0.5 s, and a busy machine is slower."""
FILES = "cuagym_files"
"""Fact that has what the set-up program wrote to /tmp."""
START = "cuagym_start"
"""Fact that has the applications' states at the start."""
_REWARD_LINE = re.compile(r"^REWARD:\s*(\S+)", re.MULTILINE)


def task_of(task: CuaGymTask, built: dict[str, Path], size: tuple[int, int], max_steps: int = MAX_STEPS) -> Task:
    """Convert a task without requirements (`cuagym.requirements_of`). `size` is the screen size in pixels."""
    setup_source, reward_source = task.programs(sites.PORT)

    async def setup(desktop: StageableDesktop) -> None:
        made = await read_in_subprocess(run_program, b"", setup_source, task.setup_name, {})
        if not task.setup:
            made["states"] = {app: HubState(sid=SESSION).data() for app in task.apps}
        if made["error"] or not made["states"]:
            why = made["error"] or "it set the state of no application"
            raise EvaluatorError(f"CUA-Gym task {task.id}: {task.setup_name} failed: {why}")
        starts = _start_paths(made["opened"])
        order = sorted(made["states"], key=lambda app: list(starts).index(app) if app in starts else len(starts))
        apps = {app: _served(app, made["states"][app], starts, built) for app in order}
        address, *more = await sites.open_hub(desktop, apps)
        setup_facts.note(desktop, FILES, made["files"])
        setup_facts.note(desktop, START, made["states"])
        await open_browser(desktop, address, *more)

    async def score(states: dict[str, Any], files: dict[str, str]) -> tuple[float, str]:
        """Return the reward and what the program printed. Raises `EvaluatorError` for a program that fails."""
        done = await read_in_subprocess(
            run_program, json.dumps(states).encode(), reward_source, task.reward_name, files
        )
        rewards = _REWARD_LINE.findall(done["output"])
        try:
            value = float(rewards[-1])
        except (IndexError, ValueError):
            why = done["error"] or "no REWARD: line"
            raise EvaluatorError(f"CUA-Gym task {task.id}: {task.reward_name}: {why}") from None
        return (min(1.0, max(0.0, value)) if value == value else 0.0), done["output"]

    async def check(desktop: StageableDesktop) -> CheckResult:
        own = await own_pages(desktop)
        states, files = await sites.read_state(desktop), setup_facts.noted(desktop, FILES)
        try:
            value, printed = await score(states, files)
        except InvalidDocument as error:
            value, printed = 0.0, str(error)
        except EvaluatorError as error:
            if task.setup:  # without one, a state is known only when the page has stored it
                await score(setup_facts.noted(desktop, START), files)  # a program that fails at the start is to blame
            value, printed = 0.0, str(error)
        pages = Finding("pages of the agent's own", float(own == "none"), own, "none")
        findings = (Finding(task.reward_name, value, printed, "REWARD: 1.0"), pages)
        return CheckResult(value if own == "none" else 0.0, printed[-200:], findings=findings)

    return Task(
        id=f"{SUITE}/{task.id}",
        family=task.id,
        suite=SUITE,
        instruction=task.instruction,
        width=size[0],
        height=size[1],
        max_steps=max_steps,
        setup=setup,
        check=check,
        difficulty="medium",
        settle_grace_s=SETTLE_GRACE_S,
        oracle_unavailable="CUA-Gym's bundles contain no solution",
        metadata={"app_type": task.app_type},
    )


def _start_paths(opened: list[str]) -> dict[str, str]:
    """Return the first path that the browser was started on, by application, in order."""
    starts: dict[str, str] = {}
    for address in opened:
        parts = urlsplit(address)
        path = parts._replace(scheme="", netloc="").geturl() or "/"
        starts.setdefault((parts.hostname or "").removesuffix(DOMAIN), path if path.startswith("/") else f"/{path}")
    return starts


def _served(app: str, state: dict[str, Any], starts: dict[str, str], built: dict[str, Path]) -> dict[str, Any]:
    """Return how the server process serves an application. Raises `EvaluatorError` if it is not built."""
    if app not in built:
        raise EvaluatorError(f"hub application {app} is not built; run npm ci and npx vite build in its folder")
    start = starts.get(app, f"/?sid={state['sid']}" if state["sid"] else "/")
    return {"dist": str(built[app].resolve()), "start": start, "state": state}

"""Audit a task with agents that try to earn reward without solving it.

Used by `deskhand tasks audit`; start with `audit`. A task passes if its oracle scores 1 and no other agent exceeds
its limit. The agents do nothing, click at random, follow the oracle with one mistake, or cheat with a shell in the
guest, which real agents do not have. All agents of a session share one desktop, so a cheat also has what earlier ones
left behind.
"""

from __future__ import annotations

import contextlib
import random
import re
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from deskhand.actions.ops import Click, Done, Fail, Op, Point, Type, Wait, screen_px
from deskhand.desktop.base import StageableDesktop
from deskhand.errors import ConfigError, GuestFailure, InfrastructureError
from deskhand.tasks import end_state
from deskhand.tasks.family_checks import Lease, find_unread_texts, oracle, wrong_first_click
from deskhand.tasks.guest_files import UNREADABLE, read_file
from deskhand.tasks.judge import AlreadySolvedError, broken_by_agent, initial_score, judge
from deskhand.tasks.oracle_sight import needs_frames
from deskhand.tasks.outcome import Errored, Outcome, Scored
from deskhand.tasks.task import FileContents, Task

Steps = list[list[Op]]
AgentSteps = Callable[[Task, StageableDesktop, Steps], AsyncIterator[list[Op]]]
"""The steps of an agent; the third argument is the steps that the oracle took on another desktop."""
Limit = Literal["zero", "below one", "one"]
NUM_RANDOM_CLICKS = 12
SHELL_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class AuditAgent:
    """An agent and its limit: its score must be 0, below 1 (it does a part of the task) or 1."""

    name: str
    steps: AgentSteps
    limit: Limit = "zero"
    judge_every_step: bool = False
    """Whether it is judged after each step; the best score counts."""
    must_be_scored: bool = False
    """Whether it breaks the desktop on purpose: then no score is a violation, too."""


async def _wait(task: Task, desktop: StageableDesktop, steps: Steps) -> AsyncIterator[list[Op]]:
    for _ in range(3):
        yield [Wait(0.1)]


async def _done(task: Task, desktop: StageableDesktop, steps: Steps) -> AsyncIterator[list[Op]]:
    yield [Done()]


async def _fail(task: Task, desktop: StageableDesktop, steps: Steps) -> AsyncIterator[list[Op]]:
    yield [Fail("it cannot be done")]


async def _random_clicks(task: Task, desktop: StageableDesktop, steps: Steps) -> AsyncIterator[list[Op]]:
    rng = random.Random(f"random clicks:{task.id}")
    for _ in range(min(NUM_RANDOM_CLICKS, task.max_steps)):
        yield [Click(Point(rng.randrange(task.width), rng.randrange(task.height), screen_px(task.width, task.height)))]
    yield [Done()]


async def _typo(task: Task, desktop: StageableDesktop, steps: Steps) -> AsyncIterator[list[Op]]:
    """The oracle with one extra character at the end of the last text."""
    left = len(_texts(steps))
    try:
        async for ops in task.oracle(desktop):
            changed: list[Op] = []
            for op in ops:
                if isinstance(op, Type) and op.text.strip():
                    left -= 1
                    text = op.text.rstrip()  # trailing white space presses a button
                    op = Type(f"{text}7{op.text[len(text) :]}") if left == 0 else op
                changed.append(op)
            yield changed
    except InfrastructureError:  # the oracle waits for something that does not appear after a typo
        yield [Done()]


async def _wrong_click(task: Task, desktop: StageableDesktop, steps: Steps) -> AsyncIterator[list[Op]]:
    try:
        async for ops in wrong_first_click(task, desktop):
            yield ops
    except InfrastructureError:
        yield [Done()]


def _texts(steps: Steps) -> list[Type]:
    return [op for ops in steps for op in ops if isinstance(op, Type) and op.text.strip()]


def _shell(script: str) -> AgentSteps:
    """Return an agent that runs a script: `$1` is the instruction, the other arguments are the file names in it."""

    async def steps_of(task: Task, desktop: StageableDesktop, steps: Steps) -> AsyncIterator[list[Op]]:
        instruction = await task.resolve_instruction(desktop)
        names = re.findall(r"[\w-]+\.[A-Za-z]{2,5}\b", instruction)
        with contextlib.suppress(InfrastructureError):
            await desktop.run(["sh", "-c", script, "sh", instruction, *names], timeout_s=SHELL_TIMEOUT_S)
        yield [Wait(0.2), Done()]

    return steps_of


async def _forged_file(task: Task, desktop: StageableDesktop, steps: Steps) -> AsyncIterator[list[Op]]:
    for path, content in task.forged_files.items():
        await desktop.push(path, content())
    yield [Wait(0.2), Done()]


async def _near_miss(task: Task, desktop: StageableDesktop, steps: Steps) -> AsyncIterator[list[Op]]:
    """Create each negative end state in turn, then restore the files."""
    assert task.example_end_states is not None
    states = task.example_end_states()
    every = [*states.negatives.values(), *([states.positive] if states.positive is not None else [])]
    paths = sorted({path for state in every for path in state})
    before = {path: data for path in paths if (data := await read_file(desktop, path)) is not None}
    folders = {str(parent) for path in paths for parent in PurePosixPath(path).parents}
    new_folders = sorted([folder for folder in folders if not await _is_folder(desktop, folder)], reverse=True)
    for state in states.negatives.values():
        await _write_state(desktop, paths, new_folders, state)
        yield [Wait(0.1)]
    await _write_state(desktop, paths, new_folders, before)


async def _write_state(
    desktop: StageableDesktop, paths: list[str], new_folders: list[str], files: FileContents
) -> None:
    """Write `files`, remove the other `paths`, and remove those of `new_folders` that are empty."""
    removed = [path for path in paths if path not in files]
    script = 'rm -f -- "$@"; while [ $# -gt 0 ]; do rmdir -- "$1"; shift; done 2>/dev/null; true'
    await desktop.run(["sh", "-c", script, "sh", *removed, *new_folders])
    for path, data in files.items():
        await desktop.push(path, data)


async def _is_folder(desktop: StageableDesktop, path: str) -> bool:
    try:
        await desktop.listdir(path)
    except (*UNREADABLE, NotADirectoryError):
        return False
    return True


_GOLD_FILES = r"""for f in $(find / -xdev -type f \( -iname '*gold*' -o -iname '*expected*' -o -iname '*answer*' \
  -o -iname '*solution*' \) -size -64k 2>/dev/null | grep -v '^/usr\|^/proc\|^/sys' | head -20); do
  find . -path './.*' -prune -o -type f -print | head -50 | while read -r t; do cp "$f" "$t"; done; done
(wget -q -T 2 -O gold http://example.org/gold || curl -s -m 2 -o gold http://example.org/gold) 2>/dev/null; true"""
_PATH_HIJACK = r"""mkdir -p bin .local/bin
for p in cat ls grep python3 sh stat test sha256sum wc xprop wmctrl soffice sqlite3; do
  for d in bin .local/bin; do printf '#!/bin/sh\necho success; echo 1; exit 0\n' > $d/$p; chmod 755 $d/$p; done; done
echo 'PATH=$HOME/bin:$HOME/.local/bin:$PATH' | tee -a .bashrc .profile .bash_profile >/dev/null"""
_OVERWRITE = r"""instruction=$1; shift
for n in "$@"; do for d in . Documents Downloads Data Lists Papers; do
  [ -d "$d" ] && printf '%s\n' "$instruction" > "$d/$n"; done; done
mkdir -p Downloads; printf '%s' "$instruction" > Downloads/result
printf '{"done": true, "success": true}' > Downloads/order.json"""
_WINDOWS = r"""command -v zenity >/dev/null &&
  (setsid zenity --info --title Success --text "Task done: $1" >/dev/null 2>&1 &)
command -v xterm >/dev/null && (setsid xterm -title "$1 - saved" -e sleep 60 >/dev/null 2>&1 &)
sleep 0.7"""
_A11Y_SPOOF = r"""command -v zenity >/dev/null && (setsid zenity --forms --title "$1" --text "status: done" \
  --add-entry "$1" --add-entry "score: 1.0" >/dev/null 2>&1 &)
sleep 0.7"""
_CLOCK = r"""date -s '2001-01-01 00:00:00' 2>/dev/null; find . -type f -exec touch -d '2038-01-01' {} + 2>/dev/null
for n in "$@"; do touch -d '2038-01-01' "$n" "Documents/$n" 2>/dev/null; done; true"""
_DISK = r"""i=0
while dd if=/dev/zero of=.fill$i bs=1M count=200 2>/dev/null; do i=$((i+1)); [ $i -gt 20 ] && break; done
rm -f .fill0 2>/dev/null; dd if=/dev/zero of=.fill0 bs=1k count=500000 2>/dev/null; true"""

_RETITLE = r"""printf '\033]0;x\007' | tee /dev/pts/* >/dev/null 2>&1
for id in $(xprop -root _NET_CLIENT_LIST 2>/dev/null | grep -o '0x[0-9a-f]*'); do
  for name in WM_NAME _NET_WM_NAME WM_CLASS; do xprop -id $id -f $name 8s -set $name Success; done; done
xprop -root -f _NET_CLIENT_LIST 32x -set _NET_CLIENT_LIST 0 2>/dev/null; true"""
_KILL_APPS = r"""for p in /proc/[0-9]*; do n=$(cat $p/comm 2>/dev/null); case "$n" in
  sh|bash|openbox|Xvfb|bwrap|cat|dbus-daemon|'') ;; *) kill -SEGV ${p#/proc/} 2>/dev/null;; esac; done; true"""
_KILL_ALL = "kill -9 -1"

ORACLE, EARLY_STOP, UNREAD, NOOP = "oracle", "early_stop", "unread", "noop"
"""`unread` is the number of things that the oracle acts on and no frame has shown (`tasks.oracle_sight`)."""
AUDIT_SESSIONS: tuple[tuple[AuditAgent, ...], ...] = (
    (
        AuditAgent(NOOP, _wait),
        AuditAgent("done", _done),
        AuditAgent("fail", _fail),
        AuditAgent("near_miss", _near_miss, judge_every_step=True),
        AuditAgent("gold_files", _shell(_GOLD_FILES)),
        AuditAgent("path_hijack", _shell(_PATH_HIJACK)),
        AuditAgent("windows", _shell(_WINDOWS)),
        AuditAgent("a11y_spoof", _shell(_A11Y_SPOOF)),
        AuditAgent("clock", _shell(_CLOCK)),
        AuditAgent("overwrite", _shell(_OVERWRITE)),
        AuditAgent("retitle", _shell(_RETITLE)),
        AuditAgent("forged_file", _forged_file),
        AuditAgent("random", _random_clicks),
        AuditAgent("disk", _shell(_DISK), must_be_scored=True),
    ),
    (AuditAgent("kill_apps", _shell(_KILL_APPS), must_be_scored=True),),
    (AuditAgent("kill_all", _shell(_KILL_ALL), must_be_scored=True),),
    (AuditAgent("typo", _typo, "below one"),),
    (AuditAgent("wrong_click", _wrong_click, "below one"),),
)
"""The agents of one tuple play in turn on one desktop. The oracle plays first, on its own desktop."""
LIMITS: dict[str, Limit] = {
    ORACLE: "one",
    EARLY_STOP: "below one",
    **{agent.name: agent.limit for session in AUDIT_SESSIONS for agent in session},
    UNREAD: "zero",
}
MUST_BE_SCORED = {agent.name for session in AUDIT_SESSIONS for agent in session if agent.must_be_scored}


@dataclass(frozen=True)
class AuditResult:
    """Scores of one task by agent. None: errored; a missing agent does not apply."""

    task: str
    values: dict[str, float | None]
    messages: dict[str, str]

    def table_row(self, width: int) -> str:
        cells = [_score_text(self.values[name]) if name in self.values else "" for name in LIMITS]
        return f"{self.task:{width}} " + " ".join(f"{cell:>11}" for cell in cells).rstrip()

    @property
    def violations(self) -> list[str]:
        """One line for each score that exceeds its agent's limit or is missing, or for an oracle below 1."""
        found = []
        for name, value in self.values.items():
            limit, why = LIMITS[name], self.messages.get(name, "")
            if value is None and name in MUST_BE_SCORED:
                found.append(f"{self.task}: {name} has no score {why}".rstrip())
            elif limit == "one" and value != 1.0:
                found.append(f"{self.task}: {name} scores {_score_text(value)}, not 1 {why}".rstrip())
            elif value is not None and (value >= 1.0 if limit == "below one" else limit == "zero" and value > 0.0):
                found.append(f"{self.task}: {name} scores {_score_text(value)} {why}".rstrip())
        return found


def table_header(width: int) -> str:
    """Return the agents' names as the head of the table; the task column has `width` characters."""
    return f"{'task':{width}} " + " ".join(f"{name:>11}" for name in LIMITS)


def _score_text(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"


def _applies(task: Task, agent: AuditAgent, steps: Steps, has_distractors: bool) -> bool:
    """Return whether an agent would act differently from the oracle, which took `steps`."""
    conditions = {
        "typo": bool(_texts(steps)),
        "wrong_click": has_distractors and not task.oracle_unavailable,
        "forged_file": bool(task.forged_files),
        "near_miss": task.example_end_states is not None,
    }
    return conditions.get(agent.name, True)


async def audit(task: Task, lease: Lease, names: Iterable[str] = (), save_dir: Path | None = None) -> AuditResult:
    """Run the oracle and all agents (or those of `names`) on a task.

    `lease` leases a desktop that was just reset for the task; `save_dir` gets the end states, one subfolder per agent.
    Raises `InfrastructureError` if no desktop could be leased or set up, and `ConfigError` for an unknown agent.
    """
    selected = set(names) or set(LIMITS)
    if unknown := selected - set(LIMITS):
        raise ConfigError(f"--agents: unknown agent {min(unknown)!r}; agents: {', '.join(LIMITS)}")
    result = AuditResult(task.id, {}, {})
    async with lease(task) as desktop:
        await task.setup(desktop)
        has_distractors, steps = bool((await task.first_click_targets(desktop))[1]), Steps()
        if not task.oracle_unavailable:
            steps, outcome, earlier = await _run_oracle(task, desktop)
            await _record(result, task, desktop, ORACLE, outcome, save_dir)
            if EARLY_STOP in selected and earlier is not None:
                result.values[EARLY_STOP] = earlier
    if UNREAD in selected and result.values.get(ORACLE) == 1.0:
        await _count_unread(result, task, lease, steps)
    for session in AUDIT_SESSIONS:
        agents = [each for each in session if each.name in selected and _applies(task, each, steps, has_distractors)]
        if not agents:
            continue
        async with lease(task) as desktop:
            await task.setup(desktop)
            try:
                await initial_score(task, desktop)
            except AlreadySolvedError as error:  # every agent would score 1
                result.values[NOOP], result.messages[NOOP] = 1.0, f"({error})"
                return result
            for agent in agents:
                outcome = await _run_agent(task, desktop, agent, steps, is_last=agent is agents[-1])
                await _record(result, task, desktop, agent.name, outcome, save_dir)
    return result


async def _count_unread(result: AuditResult, task: Task, lease: Lease, steps: Steps) -> None:
    """Replay the oracle on a desktop with an accessibility tree, if only frames can explain what it acted on."""
    try:
        unread = await find_unread_texts(task, lease, steps) if needs_frames(task, task.instruction, steps) else []
    except InfrastructureError as error:
        unread, result.messages[UNREAD] = None, f"({error})"
    result.values[UNREAD] = None if unread is None else float(len(unread))
    if unread:
        result.messages[UNREAD] = f"({'; '.join(unread)})"


async def _record(
    result: AuditResult, task: Task, desktop: StageableDesktop, name: str, outcome: Outcome, save_dir: Path | None
) -> None:
    result.values[name] = outcome.value if isinstance(outcome, Scored) else None
    if isinstance(outcome, Errored):
        result.messages[name] = f"({outcome.cause}: {outcome.message})"
    if save_dir is not None:
        with contextlib.suppress(InfrastructureError):  # the agent may have broken the desktop
            await end_state.save_end_state(task, desktop, outcome, save_dir / name)


async def _run_oracle(task: Task, desktop: StageableDesktop) -> tuple[Steps, Outcome, float | None]:
    """Return the oracle's steps, its outcome and the best score before any of its steps (None: it took none).

    Steps that only wait do not count: after the last action the task may be solved.
    """
    steps: Steps = []
    earlier: float | None = None
    try:
        async for ops in oracle(task, desktop):
            if not all(isinstance(op, (Done, Wait)) for op in ops):
                before = await judge(task, desktop, grace_s=0.0)
                if isinstance(before, Scored):
                    earlier = max(earlier or 0.0, before.value)
            await desktop.perform(ops, action_id=f"{ORACLE}#{task.id}#{len(steps)}")
            steps.append(ops)
    except InfrastructureError as error:
        return steps, Errored("infrastructure", str(error)), earlier
    return steps, await judge(task, desktop, acted_at=time.monotonic()), earlier


async def _run_agent(
    task: Task, desktop: StageableDesktop, agent: AuditAgent, steps: Steps, *, is_last: bool
) -> Outcome:
    """Run one agent and judge it; only the last agent of a desktop gets the grace period."""
    index, best, acted_at = 0, Scored(0.0), None
    try:
        async for ops in agent.steps(task, desktop, steps):
            await desktop.perform(ops, action_id=f"{agent.name}#{task.id}#{index}")
            index, acted_at = index + 1, time.monotonic()
            if agent.judge_every_step:
                outcome = await judge(task, desktop, grace_s=0.0)
                if isinstance(outcome, Errored):
                    return outcome
                best = max(best, outcome, key=lambda each: each.value)
    except GuestFailure as failure:
        return broken_by_agent(failure)
    except InfrastructureError as error:
        return Errored("infrastructure", str(error))
    if agent.judge_every_step:
        return best
    return await judge(task, desktop, grace_s=None if is_last else 0.0, acted_at=acted_at)

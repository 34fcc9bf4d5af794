"""Agents that try to be paid without doing the task. Invariant: whoever audits sees every agent's score; a task passes when its
oracle scores 1 and no other agent scores more than it is allowed.

Agents that do not act, one that clicks at random, the oracle, the oracle with one thing not quite right, and cheats that have a
shell in the guest, which no agent of ours has: they bring about what is nearly asked for, look for gold files, put false programs
first in PATH, write over the result files, show windows and widgets that speak of success, change clocks and fill the disk. One
desktop serves all agents of a session, one after the other, so that a cheat also has what the one before it left behind.
"""

from __future__ import annotations

import contextlib
import random
import re
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from deskhand.actions.ops import Click, Done, Fail, Op, Point, Type, Wait, screen_px
from deskhand.errors import ConfigError, InfrastructureError
from deskhand.tasks import end_state
from deskhand.tasks.checks.base import UNREADABLE
from deskhand.tasks.family_checks import oracle, wrong_first_click
from deskhand.tasks.judge import AlreadySolvedError, initial_score, judge
from deskhand.tasks.outcome import Errored, Outcome, Scored
from deskhand.tasks.task import FileContents, StagedDesktopLike, Task

Lease = Callable[[Task], AbstractAsyncContextManager[StagedDesktopLike]]
Steps = list[list[Op]]
Acts = Callable[[Task, StagedDesktopLike, Steps], AsyncIterator[list[Op]]]
"""What an agent does; the third is what the oracle did on another desktop, for agents that do nearly the same."""
RANDOM_CLICKS = 12
SHELL_S = 20.0


@dataclass(frozen=True)
class AuditAgent:
    """`allowed`: "nothing" must score 0; "less" must score below 1, as it does a part of the task."""

    name: str
    acts: Acts
    allowed: str = "nothing"
    every_step: bool = False
    """Whether it is judged after each of its steps, and the best counts."""


async def _wait(task: Task, desktop: StagedDesktopLike, steps: Steps) -> AsyncIterator[list[Op]]:
    for _ in range(3):
        yield [Wait(0.1)]


async def _done(task: Task, desktop: StagedDesktopLike, steps: Steps) -> AsyncIterator[list[Op]]:
    yield [Done()]


async def _fail(task: Task, desktop: StagedDesktopLike, steps: Steps) -> AsyncIterator[list[Op]]:
    yield [Fail("it cannot be done")]


async def _random_clicks(task: Task, desktop: StagedDesktopLike, steps: Steps) -> AsyncIterator[list[Op]]:
    rng = random.Random(f"random clicks:{task.id}")
    for _ in range(min(RANDOM_CLICKS, task.max_steps)):
        yield [Click(Point(rng.randrange(task.width), rng.randrange(task.height), screen_px(task.width, task.height)))]
    yield [Done()]


async def _with_a_slip(task: Task, desktop: StagedDesktopLike, steps: Steps) -> AsyncIterator[list[Op]]:
    """The oracle that types one character too many at the end of the last text that it types."""
    left = len(_texts(steps))
    try:
        async for ops in task.oracle(desktop):
            changed: list[Op] = []
            for op in ops:
                if isinstance(op, Type) and op.text.strip():
                    left -= 1
                    text = op.text.rstrip()  # what follows the last word presses something
                    op = Type(f"{text}7{op.text[len(text) :]}") if left == 0 else op
                changed.append(op)
            yield changed
    except InfrastructureError:  # what the oracle waits for does not come after a slip
        yield [Done()]


async def _misled(task: Task, desktop: StagedDesktopLike, steps: Steps) -> AsyncIterator[list[Op]]:
    try:
        async for ops in wrong_first_click(task, desktop):
            yield ops
    except InfrastructureError:
        yield [Done()]


def _texts(steps: Steps) -> list[Type]:
    return [op for ops in steps for op in ops if isinstance(op, Type) and op.text.strip()]


def _shell(script: str) -> Acts:
    """An agent with a shell: `$1` is the instruction, further words are the file names in it."""

    async def acts(task: Task, desktop: StagedDesktopLike, steps: Steps) -> AsyncIterator[list[Op]]:
        told = await task.resolve_instruction(desktop)
        names = re.findall(r"[\w-]+\.[A-Za-z]{2,5}\b", told)
        with contextlib.suppress(InfrastructureError):
            await desktop.run(["sh", "-c", script, "sh", told, *names], timeout_s=SHELL_S)
        yield [Wait(0.2), Done()]

    return acts


async def _forge(task: Task, desktop: StagedDesktopLike, steps: Steps) -> AsyncIterator[list[Op]]:
    """Writes the right content by shell where the task names the application that it is to be done in."""
    for path, content in task.forged_files.items():
        await desktop.push(path, content())
    yield [Wait(0.2), Done()]


async def _nearly(task: Task, desktop: StagedDesktopLike, steps: Steps) -> AsyncIterator[list[Op]]:
    """Brings about by shell one end state after the other that is nearly what is asked for, and leaves things as they were."""
    assert task.example_end_states is not None
    states = task.example_end_states()
    every = [*states.negatives.values(), *([states.positive] if states.positive is not None else [])]
    paths = sorted({path for state in every for path in state})
    before = {path: data for path in paths if (data := await _bytes(desktop, path)) is not None}
    folders = {str(parent) for path in paths for parent in PurePosixPath(path).parents}
    new = sorted([folder for folder in folders if not await _is_folder(desktop, folder)], reverse=True)
    for state in states.negatives.values():
        await _bring_about(desktop, paths, new, state)
        yield [Wait(0.1)]
    await _bring_about(desktop, paths, new, before)


async def _bring_about(desktop: StagedDesktopLike, paths: list[str], new: list[str], files: FileContents) -> None:
    """Just `files` of `paths`; of the folders `new` only those that they need."""
    gone = [path for path in paths if path not in files]
    script = 'rm -f -- "$@"; while [ $# -gt 0 ]; do rmdir -- "$1"; shift; done 2>/dev/null; true'
    await desktop.run(["sh", "-c", script, "sh", *gone, *new])
    for path, data in files.items():
        await desktop.push(path, data)


async def _bytes(desktop: StagedDesktopLike, path: str) -> bytes | None:
    try:
        return await desktop.pull(path)
    except UNREADABLE:
        return None


async def _is_folder(desktop: StagedDesktopLike, path: str) -> bool:
    try:
        await desktop.listdir(path)
    except (*UNREADABLE, NotADirectoryError):
        return False
    return True


_GOLD = r"""for f in $(find / -xdev -type f \( -iname '*gold*' -o -iname '*expected*' -o -iname '*answer*' \
  -o -iname '*solution*' \) -size -64k 2>/dev/null | grep -v '^/usr\|^/proc\|^/sys' | head -20); do
  find . -path './.*' -prune -o -type f -print | head -50 | while read -r t; do cp "$f" "$t"; done; done
(wget -q -T 2 -O gold http://example.org/gold || curl -s -m 2 -o gold http://example.org/gold) 2>/dev/null; true"""
_PATH = r"""mkdir -p bin .local/bin; for p in cat ls grep python3 sh stat test sha256sum wc xprop wmctrl soffice sqlite3; do
  for d in bin .local/bin; do printf '#!/bin/sh\necho success; echo 1; exit 0\n' > $d/$p; chmod 755 $d/$p; done; done
echo 'PATH=$HOME/bin:$HOME/.local/bin:$PATH' | tee -a .bashrc .profile .bash_profile >/dev/null"""
_OVERWRITE = r"""told=$1; shift
for n in "$@"; do for d in . Documents Downloads Data Lists Papers; do [ -d "$d" ] && printf '%s\n' "$told" > "$d/$n"; done; done
mkdir -p Downloads; printf '%s' "$told" > Downloads/result; printf '{"done": true, "success": true}' > Downloads/order.json"""
_WINDOWS = r"""command -v zenity >/dev/null && (setsid zenity --info --title Success --text "Task done: $1" >/dev/null 2>&1 &)
command -v xterm >/dev/null && (setsid xterm -title "$1 - saved" -e sleep 60 >/dev/null 2>&1 &)
sleep 0.7"""
_TREE = r"""command -v zenity >/dev/null && (setsid zenity --forms --title "$1" --text "status: done" --add-entry "$1" \
  --add-entry "score: 1.0" >/dev/null 2>&1 &)
sleep 0.7"""
_CLOCK = r"""date -s '2001-01-01 00:00:00' 2>/dev/null; find . -type f -exec touch -d '2038-01-01' {} + 2>/dev/null
for n in "$@"; do touch -d '2038-01-01' "$n" "Documents/$n" 2>/dev/null; done; true"""
_DISK = r"""i=0; while dd if=/dev/zero of=.fill$i bs=1M count=200 2>/dev/null; do i=$((i+1)); [ $i -gt 20 ] && break; done
rm -f .fill0 2>/dev/null; dd if=/dev/zero of=.fill0 bs=1k count=500000 2>/dev/null; true"""

ORACLE, HASTY, NOTHING = "oracle", "hasty", "nothing"
AUDIT_SESSIONS: tuple[tuple[AuditAgent, ...], ...] = (
    (
        AuditAgent(NOTHING, _wait),
        AuditAgent("done", _done),
        AuditAgent("fail", _fail),
        AuditAgent("nearly", _nearly, every_step=True),
        AuditAgent("gold", _shell(_GOLD)),
        AuditAgent("path", _shell(_PATH)),
        AuditAgent("windows", _shell(_WINDOWS)),
        AuditAgent("tree", _shell(_TREE)),
        AuditAgent("clock", _shell(_CLOCK)),
        AuditAgent("overwrite", _shell(_OVERWRITE)),
        AuditAgent("forge", _forge),
        AuditAgent("random", _random_clicks),
        AuditAgent("disk", _shell(_DISK)),
    ),
    (AuditAgent("slip", _with_a_slip, "less"),),
    (AuditAgent("misled", _misled, "less"),),
)
"""The agents of one tuple play one after the other on one desktop. The oracle has played before them."""
ALLOWED = {ORACLE: "solves", HASTY: "less"} | {
    agent.name: agent.allowed for session in AUDIT_SESSIONS for agent in session
}


@dataclass(frozen=True)
class AuditResult:
    """One task's scores by agent; None is unscored, a missing agent does not apply."""

    task: str
    values: dict[str, float | None]
    messages: dict[str, str]

    def line(self, width: int) -> str:
        cells = [_shown(self.values[name]) if name in self.values else "" for name in ALLOWED]
        return f"{self.task:{width}} " + " ".join(f"{cell:>9}" for cell in cells).rstrip()

    @property
    def wrong(self) -> list[str]:
        """What is not as it must be, in words."""
        found = []
        for name, value in self.values.items():
            allowed, why = ALLOWED[name], self.messages.get(name, "")
            if allowed == "solves" and value != 1.0:
                found.append(f"{self.task}: {name} scores {_shown(value)}, not 1 {why}".rstrip())
            elif value is not None and (value >= 1.0 if allowed == "less" else allowed == "nothing" and value > 0.0):
                found.append(f"{self.task}: {name} scores {_shown(value)} {why}".rstrip())
        return found


def header(width: int) -> str:
    """The agents' names above the rows; tasks are padded to `width`."""
    return f"{'task':{width}} " + " ".join(f"{name:>9}" for name in ALLOWED)


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"


def _applies(task: Task, agent: AuditAgent, steps: Steps, others: bool) -> bool:
    """Whether an agent has something to do that is not what the oracle did, whose steps these are; `others`: something else could
    be clicked."""
    needed = {
        "slip": bool(_texts(steps)),
        "misled": others and not task.oracle_unavailable,
        "forge": bool(task.forged_files),
        "nearly": task.example_end_states is not None,
    }
    return needed.get(agent.name, True)


async def audit(task: Task, lease: Lease, names: Iterable[str] = (), keep: Path | None = None) -> AuditResult:
    """The oracle, where there is one, and all agents (or those of `names`) on a task; end states are kept in `keep`, by agent.

    Raises `InfrastructureError` when a desktop cannot be had or set up, `ConfigError` for a name that is no agent's.
    """
    wanted = set(names) or set(ALLOWED)
    if unknown := wanted - set(ALLOWED):
        raise ConfigError(f"no agent has the name {sorted(unknown)[0]!r}; there are {', '.join(ALLOWED)}")
    row = AuditResult(task.id, {}, {})
    async with lease(task) as desktop:
        await task.setup(desktop)
        others, steps = bool((await task.first_click_targets(desktop))[1]), Steps()
        if not task.oracle_unavailable:
            steps, outcome, earlier = await _solved(task, desktop)
            await _enter(row, task, desktop, ORACLE, outcome, keep)
            if HASTY in wanted and earlier is not None:
                row.values[HASTY] = earlier
    for session in AUDIT_SESSIONS:
        agents = [agent for agent in session if agent.name in wanted and _applies(task, agent, steps, others)]
        if not agents:
            continue
        async with lease(task) as desktop:
            await task.setup(desktop)
            try:
                await initial_score(task, desktop)
            except AlreadySolvedError as error:  # nothing that an agent does there says anything
                row.values[NOTHING], row.messages[NOTHING] = 1.0, f"({error})"
                return row
            for agent in agents:
                outcome = await _played(task, desktop, agent, steps, last=agent is agents[-1])
                await _enter(row, task, desktop, agent.name, outcome, keep)
    return row


async def _enter(
    row: AuditResult, task: Task, desktop: StagedDesktopLike, name: str, outcome: Outcome, keep: Path | None
) -> None:
    row.values[name] = outcome.value if isinstance(outcome, Scored) else None
    if isinstance(outcome, Errored):
        row.messages[name] = f"({outcome.cause}: {outcome.message})"
    if keep is not None:
        with contextlib.suppress(InfrastructureError):  # of a desktop that an agent has wrecked
            await end_state.save_end_state(task, desktop, outcome, keep / name)


async def _solved(task: Task, desktop: StagedDesktopLike) -> tuple[Steps, Outcome, float | None]:
    """The oracle's steps and outcome, and the most that its task was worth before any of its steps (None: it took none)."""
    did: Steps = []
    earlier: float | None = None
    try:
        async for ops in oracle(task, desktop):
            if not any(isinstance(op, Done) for op in ops):
                before = await judge(task, desktop, grace_s=0.0)
                if isinstance(before, Scored):
                    earlier = max(earlier or 0.0, before.value)
            await desktop.perform(ops, action_id=f"{ORACLE}#{task.id}#{len(did)}")
            did.append(ops)
    except InfrastructureError as error:
        return did, Errored("infrastructure", str(error)), earlier
    return did, await judge(task, desktop), earlier


async def _played(task: Task, desktop: StagedDesktopLike, agent: AuditAgent, steps: Steps, *, last: bool) -> Outcome:
    """Let one agent act, and judge; only the last of a desktop waits for what comes late."""
    index, best = 0, Scored(0.0)
    try:
        async for ops in agent.acts(task, desktop, steps):
            await desktop.perform(ops, action_id=f"{agent.name}#{task.id}#{index}")
            index += 1
            if agent.every_step:
                outcome = await judge(task, desktop, grace_s=0.0)
                if isinstance(outcome, Errored):
                    return outcome
                best = max(best, outcome, key=lambda each: each.value)
    except InfrastructureError as error:
        return Errored("infrastructure", str(error))
    return best if agent.every_step else await judge(task, desktop, grace_s=None if last else 0.0)

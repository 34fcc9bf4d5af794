"""Play an attack as an episode and say how it ended."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from benchmarks.attacks.host import SCREEN, Host, make_folder, survivors
from benchmarks.attacks.parts import LIMITS, TOO_MUCH_MIB, Attack
from benchmarks.thresholds import ROOT
from deskhand.agents.episode_context import EpisodeContext
from deskhand.desktop.base import StageableDesktop
from deskhand.desktop.local import cgroup, precedence, processes
from deskhand.desktop.local.desktop import LocalDesktop
from deskhand.desktop.local.isolation import IsolationLevel, available_isolation
from deskhand.desktop.local.runtime_dir import runtime
from deskhand.errors import InfrastructureError
from deskhand.rollout.episode import run_episode
from deskhand.rollout.groups import EpisodeRequest
from deskhand.tasks import subprocess_call
from deskhand.tasks.formats.yaml_schema import CheckNode
from deskhand.tasks.formats.yaml_task import measure
from deskhand.tasks.outcome import Outcome, Scored
from deskhand.tasks.task import Task

GONE_WITHIN_S = 5.0
"""From the beginning of `close`, or the death of the owner, until nothing of the guests is left."""
TRIED_WITHIN_S = 40.0
PAUSE_S = 0.02
LOOKS = 3
"""How often nothing must be found: a process that moves to another process id can be missed once."""
Ending = Literal["escaped", "survived", "paid", "voided", "not tried", "held"]
_MIB = 1024


@dataclass(frozen=True)
class Setting:
    """A level of isolation, with or without control groups."""

    level: IsolationLevel
    has_groups: bool

    def __str__(self) -> str:
        return f"{self.level}, {'control groups' if self.has_groups else 'no control groups'}"


@dataclass(frozen=True)
class Result:
    """How an attack ended, and what it cost the owner."""

    attack: Attack
    setting: Setting
    ending: Ending
    detail: str = ""
    close_s: float = 0.0
    """Until nothing was left."""
    judge_s: float = 0.0
    """CPU time of the owner's other processes, among them those that read the guest's files."""
    cost_mib: float = 0.0
    """Growth of the owner's memory, at its peak."""


def settings() -> list[Setting]:
    """Return the settings that this machine has."""
    levels: list[IsolationLevel] = ["namespaces", "plain"] if available_isolation()[0] == "namespaces" else ["plain"]
    groups = [True, False] if cgroup.hierarchies()[0] else [False]
    return [Setting(level, has_groups) for level in levels for has_groups in groups]


@contextmanager
def control_groups(wanted: bool) -> Iterator[None]:
    """Desktops use control groups, or do not, as on a machine without them."""
    original = cgroup.hierarchies
    try:
        if not wanted:
            cgroup.hierarchies = cast(Any, lambda: ((), "switched off"))
        yield
    finally:
        cgroup.hierarchies = original


class Attacker:
    """An agent whose only action is the attack."""

    def __init__(self, attack: Attack, word: str, host: Host, desktop: LocalDesktop) -> None:
        self._attack, self._word, self._host, self._desktop = attack, word, host, desktop

    async def run(self, episode: EpisodeContext) -> None:
        desktop = cast(StageableDesktop, episode.desktop)
        await desktop.push("facts.json", json.dumps(self._host.facts(self._desktop)).encode())
        await desktop.push("attack.py", self._attack.source().encode())
        await desktop.launch(["python3", "attack.py", self._word])
        await self._wait(TRIED_WITHIN_S, until_tried=True)
        await self._wait(self._attack.lasts_s)

    async def _wait(self, timeout_s: float, *, until_tried: bool = False) -> None:
        """Wait; no longer than until the desktop has failed."""
        for _ in range(int(timeout_s / PAUSE_S)):
            session = self._desktop._session
            if session is None or session.failure() is not None or (until_tried and _is_over(report(self._desktop))):
                return
            await asyncio.sleep(PAUSE_S)


def report(desktop: LocalDesktop) -> list[str]:
    """Return the lines that the guest has written, also if the desktop has failed."""
    session = desktop._session
    assert session is not None
    try:  # the attack may have taken the rights away
        return (session.home.root / "report").read_bytes().decode(errors="replace").splitlines()
    except OSError:
        return []


def _is_over(lines: list[str]) -> bool:
    return any(line == "tried" or line.startswith("error ") for line in lines)


def task_of(attack: Attack) -> Task:
    async def setup(_: object) -> None: ...

    node = CheckNode.model_validate(dict(attack.check))
    check = lambda guest: measure(node, ROOT, guest)  # noqa: E731
    size = {"width": SCREEN.width, "height": SCREEN.height}
    return Task(id=f"attacks/{attack.kind}/0", instruction="x", setup=setup, check=check, settle_grace_s=0.1, **size)


async def play(attack: Attack, setting: Setting, host: Host) -> Result:
    """Play an attack on a desktop of its own. Control groups must be switched as in the setting."""
    word = secrets.token_hex(8)
    desktop = LocalDesktop(isolation_level=setting.level, limits=LIMITS)
    attacker = Attacker(attack, word, host, desktop)
    subprocess_call._cache.clear()  # it may know the file
    can_measure, before_kib = _reset_peak(), _memory_kib("VmRSS")
    before_s = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    done = await run_episode(EpisodeRequest(word, task_of(attack)), desktop, attacker, cast(Any, None))
    judge_s = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]) - before_s
    cost_mib = (_memory_kib("VmHWM") - before_kib) / _MIB if can_measure else 0.0
    lines = report(desktop) if desktop._session is not None else []
    harm = [line for line in lines if line.startswith("reached ")]
    harm += _unbounded(lines, desktop, word)
    session = desktop._session
    if attack.next_program:
        harm += await _next_episodes(attack, setting, host, desktop)
        session = desktop._session
    left, close_s = await _close(desktop, word, session)
    harm += await host.harmed()
    ending, detail = _ending(lines, harm, left, done.outcome)
    return Result(attack, setting, ending, detail, close_s, judge_s, cost_mib)


def _ending(lines: list[str], harm: list[str], left: list[str], outcome: Outcome) -> tuple[Ending, str]:
    if harm:
        return "escaped", "; ".join(harm)[:300]
    if left:
        return "survived", "; ".join(left)[:300]
    if not isinstance(outcome, Scored):
        return "voided", outcome.message
    if outcome.value > 0:
        return "paid", f"{outcome.value:g}"
    errors = [line for line in lines if line.startswith("error ")]
    # What breaks its desktop may have no time to say that it tried.
    is_broken = "began" in lines and any(finding.clause == "the desktop" for finding in outcome.findings)
    if errors or not ("tried" in lines or is_broken):
        return "not tried", "; ".join([*errors, *(finding.read for finding in outcome.findings)])[:600]
    return "held", ""


def _unbounded(lines: list[str], desktop: LocalDesktop, word: str) -> list[str]:
    """Return the memory that the guests hold beyond the limit while their desktop works."""
    session = desktop._session
    if session is None or session.failure() is not None:
        return []
    found = processes.status(session.x_server.process.pid)
    held = {"the X server holds": found.private_kib // _MIB if found is not None else 0}
    if survivors(word, None):
        said = (int(line.split()[1]) for line in lines if line.startswith("holds "))
        held["the guests hold"] = max(said, default=0)
    return [f"{who} {mib} MiB; the limit is {LIMITS.memory_mib}" for who, mib in held.items() if mib > TOO_MUCH_MIB]


async def _next_episodes(attack: Attack, setting: Setting, host: Host, desktop: LocalDesktop) -> list[str]:
    """Return what is found in the next episode of this desktop, and in one of another desktop."""
    other = LocalDesktop(isolation_level=setting.level, limits=LIMITS)
    try:
        found = []
        for name, each in (("the next episode", desktop), ("another desktop", other)):
            await each.reset(SCREEN)
            await each.push("facts.json", json.dumps(host.facts(each)).encode())
            await each.push("next.py", attack.next_source().encode())
            await each.run(["python3", "next.py", secrets.token_hex(8)])
            lines = report(each)
            found += [f"{name}: {line}" for line in lines if line.startswith(("reached ", "error "))]
            found += [] if "tried" in lines else [f"{name}: not tried"]
        return found
    finally:
        await other.close()


async def _close(desktop: LocalDesktop, word: str, session: Any) -> tuple[list[str], float]:
    """Close the desktop; return what is left `GONE_WITHIN_S` later, and how long it took."""
    began = time.monotonic()
    closing = asyncio.create_task(desktop.close())
    uid = session.jail.user.uid if session is not None and hasattr(session, "jail") else None
    left = ["close has not returned"]
    while time.monotonic() < began + GONE_WITHIN_S and left:
        await asyncio.wait([closing], timeout=0.01)
        if closing.done():
            with precedence.precedence_if_overloaded():  # other guests must not delay the look
                left = _left(word, uid, session)
    took_s = time.monotonic() - began
    with suppress(InfrastructureError):
        await closing
    return left, took_s


def _left(word: str, uid: int | None, session: Any) -> list[str]:
    for _ in range(LOOKS):
        if found := survivors(word, uid):
            return [f"processes {found[:10]}"]
        time.sleep(0.01)
    if session is None:
        return []
    left = [str(session.folder)] if session.folder.exists() else []
    with socket.socket(socket.AF_UNIX) as probe:  # another server may have taken the number
        path = session.x_server.socket_path
        left += [str(path)] if path.exists() and probe.connect_ex(str(path)) else []
    if session._cgroup is not None and session._cgroup.exists:
        left.append("its control group")
    if session._user._is_reserved:
        left.append("its user id")
    return left


def _reset_peak() -> bool:
    """Let VmHWM start at the memory in use; return whether the kernel can."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _memory_kib(field: str) -> int:
    return int(Path("/proc/self/status").read_text().partition(f"{field}:")[2].split()[0])


async def own(attack: Attack, setting: Setting, folder: Path) -> None:
    """Own a desktop under attack until killed. Prints the word, the user id and the folder when it was tried."""
    word = secrets.token_hex(8)
    with control_groups(setting.has_groups):
        async with Host(setting.level, folder) as host:
            desktop = LocalDesktop(isolation_level=setting.level, limits=LIMITS)
            await desktop.reset(SCREEN)
            with suppress(InfrastructureError):
                await Attacker(attack, word, host, desktop).run(cast(Any, _Episode(desktop)))
            assert desktop._session is not None
            is_tried = "tried" in report(desktop)
            uid = desktop._session.jail.user.uid
            print(word, uid, runtime().folder, runtime().token, is_tried, flush=True)
            await asyncio.sleep(60)


@dataclass
class _Episode:
    desktop: LocalDesktop


def play_with_killed_owner(attack: Attack, setting: Setting) -> Result:
    """Start an owner, kill it by SIGKILL, and look for what is left."""
    host = make_folder()
    words = [
        "-m",
        "benchmarks.guest_attacks",
        "--own",
        attack.name,
        setting.level,
        str(int(setting.has_groups)),
        str(host),
    ]
    owner = subprocess.Popen(
        [sys.executable, *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert owner.stdout is not None
    with owner.stdout:
        said = owner.stdout.readline().split()
        owner.send_signal(signal.SIGKILL)
        owner.wait()
    shutil.rmtree(host, ignore_errors=True)
    if len(said) != 5 or said[4] != "True":
        return Result(attack, setting, "not tried", f"the owner said {said}")
    word, uid, folder, token, _ = said
    began = time.monotonic()
    left = ["not looked"]
    while left and time.monotonic() < began + GONE_WITHIN_S:
        left = _left(word, int(uid) if uid.isdecimal() else None, None)
        left += [folder] if Path(folder).exists() else []
        left += [group for group, _, _ in os.walk("/sys/fs/cgroup") if token in Path(group).name]
        time.sleep(0.02)
    ending: Ending = "survived" if left else "held"
    return Result(attack, setting, ending, "; ".join(left)[:300], time.monotonic() - began)

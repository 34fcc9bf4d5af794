"""Agents that cheat with a shell in the guest, an X client, or files, which no Deskhand agent has."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path, PurePosixPath

from deskhand.actions.ops import Answer, Done, Fail, Op, Wait
from deskhand.desktop.base import StageableDesktop
from deskhand.errors import InfrastructureError
from deskhand.tasks.cheats import shell_scripts
from deskhand.tasks.cheats.oracle_variants import AgentSteps, Steps
from deskhand.tasks.guest_files import UNREADABLE, read_file
from deskhand.tasks.suites import web
from deskhand.tasks.task import FileContents, Task

NUM_GUESSES = 29
SHELL_TIMEOUT_S = 10.0
_shells: set[AgentSteps] = set()
SITE_REQUESTS = Path(__file__).parent / "site_requests.py"
FORM_FIELDS = ("to", "subject", "text", "name", "town", "title", "day", "time", "place", "email", "travelers", "terms")
X11_CLIENT = Path(__file__).parent / "x11_client.py"


def shell(script: str) -> AgentSteps:
    """Return an agent that runs a script: `$1` is the instruction, the other arguments are the file names in it."""

    async def steps_of(task: Task, desktop: StageableDesktop, steps: Steps) -> AsyncIterator[list[Op]]:
        await _run(desktop, ["sh", "-c", script, "sh", *await _words(task, desktop)])
        yield [Wait(0.1), Done()]

    _shells.add(steps_of)
    return steps_of


def is_shell(steps: AgentSteps) -> bool:
    """Return whether an agent is of `shell`."""
    return steps in _shells


def x11(mode: str) -> AgentSteps:
    """Return an agent that runs the X client of `tasks.cheats`."""

    async def steps_of(task: Task, desktop: StageableDesktop, steps: Steps) -> AsyncIterator[list[Op]]:
        words = await _words(task, desktop)
        known = [str(task.metadata[name]) for name in ("result", "number") if name in task.metadata]
        texts = known or words if mode in ("selection", "mute_selection", "claim_for") else words
        await _run(desktop, ["python3", "-c", X11_CLIENT.read_text(encoding="utf-8"), mode, *texts])
        yield [Wait(0.1), Done()]

    return steps_of


async def site_requests(task: Task, desktop: StageableDesktop, steps: Steps) -> AsyncIterator[list[Op]]:
    """Send the forms of every application without the browser, filled with the words of the instruction."""
    words = (await task.resolve_instruction(desktop)).split()
    fields = {name: words[index % len(words)] for index, name in enumerate(FORM_FIELDS)}
    forms = [[path.replace("{id}", "1"), fields] for path in web.action_paths()]
    await _run(desktop, ["python3", "-c", SITE_REQUESTS.read_text(encoding="utf-8"), json.dumps(forms)])
    yield [Wait(0.1), Done()]


async def _run(desktop: StageableDesktop, command: list[str]) -> None:
    """Run a cheat. That it broke the desktop is seen when the desktop is used next."""
    with contextlib.suppress(InfrastructureError):
        await desktop.run(command, timeout_s=SHELL_TIMEOUT_S)


async def _words(task: Task, desktop: StageableDesktop) -> list[str]:
    """Return the instruction and the file names in it."""
    instruction = await task.resolve_instruction(desktop)
    return [instruction, *re.findall(r"[\w-]+\.(?:tar\.gz|[A-Za-z]{2,5})\b", instruction)]


async def forged_file(task: Task, desktop: StageableDesktop, steps: Steps) -> AsyncIterator[list[Op]]:
    for path, content in task.forged_files.items():
        await desktop.push(path, content())
    yield [Wait(0.2), Done()]


async def forged_after_end(task: Task, desktop: StageableDesktop, steps: Steps) -> AsyncIterator[list[Op]]:
    """End the programs that could tell who did it, then write the right files."""
    await _run(desktop, ["sh", "-c", shell_scripts.END_APPS])
    yield [Wait(0.3)]
    async for ops in forged_file(task, desktop, steps):
        yield ops


_shells.add(forged_after_end)


async def near_miss(task: Task, desktop: StageableDesktop, steps: Steps) -> AsyncIterator[list[Op]]:
    """Create each negative end state in turn, with the right answer or declaration; then restore the files, and give
    each wrong answer."""
    if task.suite == web.SUITE:
        async for ops in web.near_miss(task, desktop):
            yield ops
        return
    assert task.example_end_states is not None
    states = task.example_end_states()
    every = [*states.negatives.values(), *([states.positive] if states.positive is not None else [])]
    paths = sorted({path for state in every for path in state})
    before = {path: data for path in paths if (data := await read_file(desktop, path)) is not None}
    folders = {str(parent) for path in paths for parent in PurePosixPath(path).parents}
    new_folders = sorted([folder for folder in folders if not await _is_folder(desktop, folder)], reverse=True)
    end: Op = Wait(0.1)
    if task.infeasible_reward is not None:
        end = Fail("it cannot be done")
    elif task.accepted_answers:
        end = Answer(task.accepted_answers[0])
    for state in states.negatives.values():
        await _write_state(desktop, paths, new_folders, state)
        yield [end]
    await _write_state(desktop, paths, new_folders, before)
    for answer in task.metadata.get("wrong_answers", ()):
        yield [Answer(answer)]


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
    except UNREADABLE:
        return False
    return True


async def racing_writer(task: Task, desktop: StageableDesktop, steps: Steps) -> AsyncIterator[list[Op]]:
    """Write one guess after the other, of which one is right, for as long as the judge waits.

    Without a file that differs from the right end state, the last one of it by name is written.
    """
    assert task.example_end_states is not None
    positive = task.example_end_states().positive or {}
    changed = [path for path, data in positive.items() if await read_file(desktop, path) != data]
    for path in changed[:-1]:
        await desktop.push(path, positive[path])
    target = changed[-1] if changed else max(positive)
    known = [files.get(target) for files in task.example_end_states().negatives.values()]
    wrong = [data for data in known if data is not None and data != positive[target]]
    for index in range(NUM_GUESSES):
        other = wrong[index % len(wrong)] if wrong else positive[target][:-2] + f"{index}\n".encode()
        guess = positive[target] if index == NUM_GUESSES // 2 else other
        await desktop.push(f".race/{index}", guess)
    loop = f"while :; do for i in $(seq 0 {NUM_GUESSES - 1}); do cp .race/$i .race/t; mv .race/t '{target}'; done; done"
    await _run(desktop, ["sh", "-c", f"mkdir -p '{PurePosixPath(target).parent}'; setsid sh -c \"$1\" &", "sh", loop])
    yield [Wait(0.3), Done()]

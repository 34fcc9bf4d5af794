"""Tasks that end in an answer, or in the statement that they cannot be done; their files must stay as they were.

Used by the families that ask a question, and by those whose instruction cannot be followed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from deskhand.actions.ops import Answer, Fail, Op
from deskhand.desktop.base import StageableDesktop
from deskhand.tasks.guest_files import read_folder
from deskhand.tasks.outcome import Finding
from deskhand.tasks.suites.basics import hd_screen
from deskhand.tasks.suites.basics.hd_screen import Steps
from deskhand.tasks.suites.basics.scenario import Scenario, combine_clauses, same_files
from deskhand.tasks.task import CheckResult, ExampleEndStates, FileContents, Task

CANNOT = "it cannot be done"


async def read_tree(desktop: StageableDesktop, files: FileContents) -> dict[str, bytes | None]:
    """Return the files of every folder that has one of `files`, by path; None for what is neither file nor folder.

    Files by which LibreOffice locks one of `files` are left out.
    """
    folders = sorted({str(parent) for path in files for parent in PurePosixPath(path).parents} - {"."})
    found = [(folder, await read_folder(desktop, folder)) for folder in folders]
    every = {f"{folder}/{name}": data for folder, inside in found for name, data in inside.items()}
    locks = {str(PurePosixPath(path).with_name(f".~lock.{PurePosixPath(path).name}#")) for path in files}
    return {path: data for path, data in every.items() if path not in folders and path not in locks}


def told_task(
    scenario: Scenario,
    instruction: str,
    files: FileContents,
    steps: Steps,
    answer: str | None,
    *,
    wrong_answers: Sequence[str] = (),
    follows: Mapping[str, tuple[str, ...]] | None = None,
    max_steps: int = 10,
    unchanged: Callable[[StageableDesktop], Awaitable[Finding]] | None = None,
    **fields: Any,
) -> Task:
    """Return a task that ends in `answer`; None: that it cannot be done. `files` (by path) must stay as they are.

    `steps` are what the oracle does before; `wrong_answers` are nearly right ones, for the tests. `unchanged` is the
    clause on the files, for a program that keeps its own files among them.
    """

    async def same(desktop: StageableDesktop) -> Finding:
        if unchanged is not None:
            return await unchanged(desktop)
        return same_files("the files", await read_tree(desktop, files), files)

    async def clauses(desktop: StageableDesktop) -> list[Finding]:
        if answer is None:
            return [Finding("the end", 0.0, "not declared infeasible", "infeasible")]
        return [await same(desktop)]

    async def infeasible_check(desktop: StageableDesktop) -> CheckResult:
        return combine_clauses(await same(desktop))

    async def unsolved(desktop: StageableDesktop) -> CheckResult:
        return CheckResult(0.0, "no answer was given")

    async def oracle(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        async for ops in hd_screen.play(desktop, steps):
            yield ops
        yield [Fail(CANNOT) if answer is None else Answer(answer)]

    def end_states() -> ExampleEndStates:
        path = max(files)
        gone = {name: data for name, data in files.items() if name != path}
        told = {**files, str(PurePosixPath(path).with_name("answer.txt")): f"{answer}\n".encode()}
        return ExampleEndStates(
            {"a file is gone": gone, "a file is empty": {**files, path: b""}, "in a file": told}, None
        )

    return scenario.build_task(
        instruction,
        clauses=clauses,
        start_check=unsolved,
        oracle=oracle,
        accepted_answers=() if answer is None else (answer,),
        infeasible_reward=1.0 if answer is None else None,
        infeasible_check=infeasible_check if answer is None else None,
        oracle_follows=follows or {},
        example_end_states=end_states,
        max_steps=max_steps,
        metadata={"files": files, "wrong_answers": tuple(wrong_answers)},
        **fields,
    )

"""Agents that follow the oracle with a mistake, or write a constant in place of a formula."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

from deskhand.actions.ops import Answer, Done, Op, Type
from deskhand.desktop.base import StageableDesktop
from deskhand.errors import GuestFailure, InfrastructureError
from deskhand.tasks import formulas
from deskhand.tasks.family_checks import wrong_first_click
from deskhand.tasks.guest_files import read_file
from deskhand.tasks.suites.basics.office_files import read_workbook
from deskhand.tasks.task import Task

Steps = list[list[Op]]
AgentSteps = Callable[[Task, StageableDesktop, Steps], AsyncIterator[list[Op]]]
"""The steps of an agent; the third argument is the steps that the oracle took on another desktop."""


def _oracle_with(change: Callable[[Op, StageableDesktop], Op | None]) -> AgentSteps:
    """Return the oracle with every op passed through `change`; None leaves it out."""

    async def steps_of(task: Task, desktop: StageableDesktop, steps: Steps) -> AsyncIterator[list[Op]]:
        async for ops in as_far_as_possible(task.oracle(desktop)):
            if changed := [new for op in ops if (new := change(op, desktop)) is not None]:
                yield changed

    return steps_of


async def as_far_as_possible(steps: AsyncIterator[list[Op]]) -> AsyncIterator[list[Op]]:
    """End where an oracle waits for something that does not appear after a mistake."""
    try:
        async for ops in steps:
            yield ops
    except GuestFailure:
        raise
    except InfrastructureError:
        yield [Done()]


async def typo(task: Task, desktop: StageableDesktop, steps: Steps) -> AsyncIterator[list[Op]]:
    """The oracle with one extra character at the end of the last text, which may be its answer."""
    left = len(texts_of(steps))

    def change(op: Op, desktop: StageableDesktop) -> Op:
        nonlocal left
        if not isinstance(op, Type | Answer) or not op.text.strip():
            return op
        left -= 1
        text = op.text.rstrip()  # trailing white space presses a button
        return replace(op, text=f"{text}7{op.text[len(text) :]}") if left == 0 else op

    async for ops in _oracle_with(change)(task, desktop, steps):
        yield ops


async def wrong_click(task: Task, desktop: StageableDesktop, steps: Steps) -> AsyncIterator[list[Op]]:
    async for ops in as_far_as_possible(wrong_first_click(task, desktop)):
        yield ops


def texts_of(steps: Steps) -> list[Type | Answer]:
    """Return what an oracle typed or answered, without white space alone."""
    return [op for ops in steps for op in ops if isinstance(op, Type | Answer) and op.text.strip()]


def formula_of(steps: Steps) -> str:
    """Return the formula that an oracle typed; empty if none."""
    return next((op.text.strip() for op in texts_of(steps) if op.text.startswith("=")), "")


def in_place_of_formula(write: Callable[[str, str, str], str]) -> AgentSteps:
    """Return the oracle with another text than its formula: `write(formula, its value, value of the first half)`."""

    async def steps_of(task: Task, desktop: StageableDesktop, steps: Steps) -> AsyncIterator[list[Op]]:
        formula = formula_of(steps)
        half = re.sub(r"([A-Z])(\d+):[A-Z](\d+)", lambda found: _first_half(*found.groups()), formula)
        numbers = await _numbers(task, desktop)
        values = [f"{formulas.evaluate(each, numbers):.12g}" for each in (formula, half)]
        rest = f"{float(values[0]) - float(values[1]):+.12g}"
        text = write(formula, values[0], f"{half}{rest}")

        def change(op: Op, desktop: StageableDesktop) -> Op:
            return Type(text + "\n") if isinstance(op, Type) and op.text.startswith("=") else op

        async for ops in _oracle_with(change)(task, desktop, steps):
            yield ops

    return steps_of


def _first_half(column: str, first: str, last: str) -> str:
    return f"{column}{first}:{column}{(int(first) + int(last)) // 2}"


async def _numbers(task: Task, desktop: StageableDesktop) -> dict[str, float]:
    book = await read_workbook(await read_file(desktop, str(task.metadata["file"])))
    rows = next(iter(book.values.values())) if book else []
    cells = {f"{chr(65 + column)}{row + 1}": cell for row, line in enumerate(rows) for column, cell in enumerate(line)}
    return {name: float(cell) for name, cell in cells.items() if isinstance(cell, int | float)}

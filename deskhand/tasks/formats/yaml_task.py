"""Build a `Task` from a YAML task file.

Start with `load_task`. A failing setup raises `InfrastructureError`, so the episode is errored.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

from deskhand.actions.ops import Click, Done, Drag, Key, Move, Op, Point, Scroll, Type, Wait, screen_px
from deskhand.desktop.base import StageableDesktop
from deskhand.errors import InfrastructureError
from deskhand.tasks.checks.reference_file import ReferenceFileCheck
from deskhand.tasks.file_problems import quoted
from deskhand.tasks.formats import yaml_schema
from deskhand.tasks.formats.yaml_schema import CheckNode, NativeTask, OracleOp, SetupStep, WindowPoint
from deskhand.tasks.guest_files import read_file
from deskhand.tasks.outcome import Finding
from deskhand.tasks.task import CheckResult, Milestone, Task

SUITE = "native"
NO_ORACLE = "no oracle; add the key oracle"
WAIT_TIMEOUT_S = 20.0
_RETRY_INTERVAL_S = 0.1


def load_task(path: Path) -> Task:
    """Return the task of a file. Raises `TaskFileError`."""
    return task_of(yaml_schema.load(path), path.parent)


def task_of(file: NativeTask, folder: Path) -> Task:
    """Return the task that `file` describes; `folder` is the task file's."""

    async def setup(desktop: StageableDesktop) -> None:
        for step in file.setup:
            await _perform(step, desktop, folder)
        await desktop.observe()

    async def oracle(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        for step in file.oracle or ():
            ops: list[Op] = []
            for node in step:
                if node.wait_window is not None or node.wait_file is not None:
                    if ops:
                        yield ops
                    ops = []
                    await _await(node, desktop)
                else:
                    ops.append(await _op(node, desktop, file))
            if ops:
                yield ops
        yield [Done()]

    task = Task(
        id=f"{SUITE}/{file.id}/0",
        family=file.id,
        suite=SUITE,
        instruction=file.instruction,
        width=file.screen.width,
        height=file.screen.height,
        max_steps=file.limits.steps,
        setup=setup,
        check=functools.partial(measure, file.check, folder),
        theme=file.theme,
        milestones=tuple(
            Milestone(each.name, each.weight, functools.partial(measure, each.check, folder), tuple(each.after))
            for each in file.milestones
        ),
        difficulty=file.difficulty,
        oracle_unavailable="" if file.oracle is not None else NO_ORACLE,
        oracle_knows=tuple(file.oracle_knows),
        oracle_follows={word: tuple(texts) for word, texts in file.oracle_follows.items()},
        settle_grace_s=file.limits.settle_grace_s,
        check_timeout_s=file.limits.check_timeout_s,
        step_timeout_s=file.limits.step_timeout_s,
        episode_timeout_s=file.limits.episode_timeout_s,
        format_penalty=file.format_penalty,
        step_cost=file.step_cost,
        metadata={"programs": file.programs},
    )
    return task if file.oracle is None else replace(task, oracle=oracle)


async def measure(node: CheckNode, folder: Path, desktop: StageableDesktop) -> CheckResult:
    """Return the value of a check; `folder` is the task file's."""
    if (leaf := node.leaf) is not None:
        check = await (leaf.measure(desktop, folder) if isinstance(leaf, ReferenceFileCheck) else leaf.measure(desktop))
        return check if check.findings else replace(check, findings=(_finding(node, check),))
    name, parts = node.selected
    found = [await measure(part, folder, desktop) for part in parts]
    values = [check.value for check in found]
    if name == "sum":
        weights = [part.weight or 1.0 for part in parts]
        value = sum(weight * value for weight, value in zip(weights, values, strict=True)) / sum(weights)
    else:
        value = min(values) if name == "all" else max(values)
    detail = "; ".join(check.detail for check in found if check.detail)
    return CheckResult(
        value,
        f"{name} of ({detail})",
        any(check.untrusted_source for check in found),
        tuple(finding for check in found for finding in check.findings),
        any(check.no_retry for check in found),
    )


def _finding(node: CheckNode, check: CheckResult) -> Finding:
    kind, leaf = node.selected
    expected = leaf.model_dump(exclude_unset=True, mode="json")
    return Finding(
        f"{kind.rstrip('_')} {expected.pop('path', '')}".strip(), check.value, check.detail, quoted(expected)
    )


async def _perform(step: SetupStep, desktop: StageableDesktop, folder: Path) -> None:
    if step.write is not None:
        text, source = step.write.text, step.write.copy_of
        data = text.encode() if text is not None else await asyncio.to_thread((folder / str(source)).read_bytes)
        await desktop.push(step.write.path, data)
    elif step.launch is not None:
        await desktop.launch(list(step.launch.run), env=dict(step.launch.env), cwd=step.launch.cwd)
        if step.launch.window is not None:
            await desktop.wait_window(step.launch.window)
    elif step.run is not None:
        done = await desktop.run(
            list(step.run.run), env=dict(step.run.env), cwd=step.run.cwd, timeout_s=step.run.timeout_s
        )
        if done.returncode != 0:
            message = " ".join(done.stderr.decode(errors="replace").split())[-200:]
            raise InfrastructureError(f"setup: {step.run.run[0]} exited with {done.returncode}: {message}")
    elif step.wait_window is not None:
        wanted = step.wait_window
        await desktop.wait_window(wanted.window, count=wanted.count, timeout_s=wanted.timeout_s)
    elif step.place is not None:
        window = (await desktop.wait_window(step.place.window))[-1]
        await desktop.place_window(window, *step.place.at, *(step.place.size or ()))
    elif step.wait is not None:
        await asyncio.sleep(step.wait)


async def _await(node: OracleOp, desktop: StageableDesktop) -> None:
    if node.wait_window is not None:
        await desktop.wait_window(
            node.wait_window.window, count=node.wait_window.count, timeout_s=node.wait_window.timeout_s
        )
    elif node.wait_file is not None:
        deadline = time.monotonic() + WAIT_TIMEOUT_S
        while await read_file(desktop, node.wait_file) is None:
            if time.monotonic() > deadline:
                raise InfrastructureError(f"oracle: {node.wait_file} did not appear within {WAIT_TIMEOUT_S:g} s")
            await asyncio.sleep(_RETRY_INTERVAL_S)


async def _op(node: OracleOp, desktop: StageableDesktop, file: NativeTask) -> Op:
    async def point(position: WindowPoint) -> Point:
        x, y = position.at
        if position.window is not None:
            window = (await desktop.wait_window(position.window))[-1]
            x, y = window.x + (x if x >= 0 else window.width + x), window.y + (y if y >= 0 else window.height + y)
        return Point(x, y, screen_px(file.screen.width, file.screen.height))

    if node.click is not None:
        return Click(await point(node.click), node.click.button, node.click.count)
    if node.move is not None:
        return Move(await point(node.move))
    if node.drag is not None:
        return Drag(tuple([await point(position) for position in node.drag]))
    if node.scroll is not None:
        return Scroll(node.scroll.dx, node.scroll.dy, await point(node.scroll))
    if node.type is not None:
        return Type(node.type)
    if node.key is not None:
        return Key(tuple(_chord(node.key)))
    return Wait(node.wait or 0.0)


def _chord(text: str) -> list[str]:
    """Split `ctrl+s` into its keys; a trailing plus is the key itself."""
    keys = text.split("+")
    return [*keys[:-2], "+"] if text.endswith("+") and len(text) > 1 else ["+"] if text == "+" else keys

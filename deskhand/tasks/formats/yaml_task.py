"""Makes a `Task` of a native task file. Invariant: set-up that fails is the desktop's or the task's fault and never scored; checks
read the end state through the desktop alone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from deskhand.actions.ops import Click, Done, Drag, Key, Move, Op, Point, Scroll, Type, Wait, screen_px
from deskhand.errors import ConfigError, InfrastructureError
from deskhand.tasks.checks.base import UNREADABLE, quoted
from deskhand.tasks.checks.reference_file import ReferenceFileCheck
from deskhand.tasks.formats import yaml_schema
from deskhand.tasks.formats.yaml_schema import CheckNode, NativeTask, OracleOp, SetupStep, WindowPoint
from deskhand.tasks.outcome import Finding
from deskhand.tasks.task import CheckFunction, CheckResult, Milestone, Rect, StagedDesktopLike, Task

SUITE = "native"
NO_ORACLE = "has no oracle; write one under the key oracle"
WAIT_S = 20.0
_LOOK_AGAIN_S = 0.1


def load_task(path: Path) -> Task:
    """The task of a file. Raises `TaskFileError`."""
    return task_of(yaml_schema.load(path), path.parent)


def task_of(file: NativeTask, folder: Path) -> Task:
    """The task that `file` describes; files that it copies lie in `folder`."""

    async def setup(desktop: StagedDesktopLike) -> None:
        for step in file.setup:
            await _perform(step, desktop, folder)
        await desktop.observe()

    async def oracle(desktop: StagedDesktopLike) -> AsyncIterator[list[Op]]:
        if file.oracle is None:
            raise ConfigError(f"task {file.id} {NO_ORACLE}")
        for step in file.oracle:
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

    async def targets(desktop: StagedDesktopLike) -> tuple[Rect | None, list[Rect]]:
        return None, []

    return Task(
        id=f"{SUITE}/{file.id}/0",
        family=file.id,
        suite=SUITE,
        seed=0,
        instruction=file.instruction,
        width=file.screen.width,
        height=file.screen.height,
        max_steps=file.limits.steps,
        setup=setup,
        check=check_of(file.check, folder),
        oracle=oracle,
        first_click_targets=targets,
        theme=file.template,
        milestones=tuple(
            Milestone(each.name, each.weight, check_of(each.check, folder), tuple(each.after))
            for each in file.milestones
        ),
        difficulty=file.tier,
        oracle_unavailable="" if file.oracle is not None else NO_ORACLE,
        settle_grace_s=file.limits.late_s,
        check_timeout_s=file.limits.check_s,
        step_timeout_s=file.limits.step_s,
        episode_timeout_s=file.limits.episode_s,
        format_penalty=file.format_penalty,
        step_cost=file.step_cost,
        metadata={"programs": file.programs},
    )


def check_of(node: CheckNode, folder: Path) -> CheckFunction:
    """The function that measures a check and the checks in it, all of them, so that the detail tells of each."""

    async def check(desktop: StagedDesktopLike) -> CheckResult:
        return await measure(node, desktop, folder)

    return check


async def measure(node: CheckNode, desktop: StagedDesktopLike, folder: Path) -> CheckResult:
    """What a check is worth; `folder` is that of the task file."""
    leaf = node.leaf
    if leaf is not None:
        check = await (leaf.measure(desktop, folder) if isinstance(leaf, ReferenceFileCheck) else leaf.measure(desktop))
        return check if check.findings else replace(check, findings=(_finding(node, check),))
    name, parts = node.chosen
    found = [await measure(part, desktop, folder) for part in parts]
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
    """A leaf's fact with what its file asks for."""
    kind, leaf = node.chosen
    asked = leaf.model_dump(exclude_unset=True, mode="json")
    return Finding(f"{kind.rstrip('_')} {asked.pop('path', '')}".strip(), check.value, check.detail, quoted(asked))


async def _perform(step: SetupStep, desktop: StagedDesktopLike, folder: Path) -> None:
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
            said = " ".join(done.stderr.decode(errors="replace").split())[-200:]
            raise InfrastructureError(f"set-up: {step.run.run[0]} ended with {done.returncode}: {said}")
    elif step.wait_window is not None:
        wanted = step.wait_window
        await desktop.wait_window(wanted.window, count=wanted.count, timeout_s=wanted.timeout_s)
    elif step.place is not None:
        window = (await desktop.wait_window(step.place.window))[-1]
        await desktop.place_window(window, *step.place.at, *(step.place.size or ()))
    elif step.wait is not None:
        await asyncio.sleep(step.wait)


async def _await(node: OracleOp, desktop: StagedDesktopLike) -> None:
    if node.wait_window is not None:
        await desktop.wait_window(
            node.wait_window.window, count=node.wait_window.count, timeout_s=node.wait_window.timeout_s
        )
    elif node.wait_file is not None:
        await _until(lambda: _is_there(desktop, str(node.wait_file)), f"the file {node.wait_file}")


async def _is_there(desktop: StagedDesktopLike, path: str) -> bool:
    try:
        await desktop.pull(path)
    except UNREADABLE:
        return False
    return True


async def _until(holds: Callable[[], Awaitable[bool]], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not await holds():
        if time.monotonic() > deadline:
            raise InfrastructureError(f"the oracle waited {WAIT_S:g} s for {what} in vain")
        await asyncio.sleep(_LOOK_AGAIN_S)


async def _op(node: OracleOp, desktop: StagedDesktopLike, file: NativeTask) -> Op:
    async def point(spot: WindowPoint) -> Point:
        x, y = spot.at
        if spot.window is not None:
            window = (await desktop.wait_window(spot.window))[-1]
            x, y = window.x + (x if x >= 0 else window.width + x), window.y + (y if y >= 0 else window.height + y)
        return Point(x, y, screen_px(file.screen.width, file.screen.height))

    if node.click is not None:
        return Click(await point(node.click), node.click.button, node.click.count)
    if node.move is not None:
        return Move(await point(node.move))
    if node.drag is not None:
        return Drag(tuple([await point(spot) for spot in node.drag]))
    if node.scroll is not None:
        return Scroll(node.scroll.dx, node.scroll.dy, await point(node.scroll))
    if node.type is not None:
        return Type(node.type)
    if node.key is not None:
        return Key(tuple(_chord(node.key)))
    return Wait(node.wait or 0.0)


def _chord(text: str) -> list[str]:
    """`ctrl+s` as its keys; a plus at the end is the key itself."""
    keys = text.split("+")
    return [*keys[:-2], "+"] if text.endswith("+") and len(text) > 1 else ["+"] if text == "+" else keys

"""`deskhand rescore`: score saved end states again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from deskhand.cli.common import Flag, Overrides, Profile
from deskhand.cli.output import Json, print_json


def rescore(
    paths: list[Path],
    /,
    *,
    task: Path | None = None,
    config: Path | None = None,
    profile: Profile = None,
    only_changed: Annotated[bool, Flag] = False,
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Score saved end states again, with the current checks or those of a task file. Plays nothing.

    Parameters
    ----------
    paths
        End states, or folders of them.
    task
        Task file in Deskhand's YAML whose checks replace the tasks' own.
    config
        Config file whose suite contains the tasks (default: the settings of the run that contains the states).
    only_changed
        Print only states whose score changes.
    """
    import asyncio

    from deskhand.recipes.rescore import task_finder
    from deskhand.tasks import end_state
    from deskhand.tasks.formats import yaml_task

    replacement = yaml_task.load_task(task) if task is not None else None
    find = task_finder(config, profile, overrides or ())

    rows: list[dict[str, object]] = []

    async def main() -> tuple[int, int]:
        total = changed = 0
        states = end_state.load_end_states(paths)
        async for result in end_state.rescore_states(states, lambda state: replacement or find(state)):
            total, changed = total + 1, changed + result.changed
            if only_changed and not result.changed:
                continue
            if as_json:
                rows.append(result.data())
            else:
                print("\n".join(result.lines()))
        return total, changed

    total, changed = asyncio.run(main())
    if as_json:
        print_json({"total": total, "changed": changed, "states": rows})
    else:
        print(f"{total} end states rescored, {changed} changed")

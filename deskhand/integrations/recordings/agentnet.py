"""AgentNet, the data set of OpenCUA: `read_agentnet`. Used by `imports`.

One trajectory per line: `task_id`, `instruction`, `task_completed`, and `traj` with steps of `image` (a file name) and
`value`, which has `code` (PyAutoGUI with fractions of the screen), `thought`, `action` (what is done, as text),
`last_step_correct` and `last_step_redundant` (of the step itself). Raw files have `code` alone.

Source: xlang-ai/OpenCUA at 1d70f20, `data/cot-generate`; the data set's card.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from deskhand.actions import formats
from deskhand.integrations.recordings.trajectories import Problems, Step, Trajectory, image_in, json_lines, text_of


def read_agentnet(source: Path, images: Path | None, problems: Problems) -> Iterator[Trajectory]:
    """Read a file; screenshots are in `images` (None: the file's folder)."""
    for place, row in json_lines(source, problems):
        if row is None:
            continue
        steps, instruction = row.get("traj"), text_of(row, "instruction")
        if not instruction or not isinstance(steps, list):
            missing = "traj, a list of steps" if instruction else "instruction"
            problems.add(place, f"no {missing}; this is not a trajectory of AgentNet, or the key is to be added")
            continue
        found = [_step(f"{place} step {n}", step, images or source.parent, problems) for n, step in enumerate(steps)]
        done = row.get("task_completed")
        reward = None if done is None else float(done is True)
        name = f"{text_of(row, 'task_id') or source.stem}.{place.rpartition(':')[2]}"
        yield Trajectory(name, instruction, tuple(found), reward)


def _step(place: str, step: Any, images: Path, problems: Problems) -> Step | None:
    value = step.get("value") if isinstance(step, dict) else None
    image, code = image_in(images, text_of(step, "image")), text_of(value, "code")
    if not isinstance(value, dict) or image is None or not code:
        problems.add(place, f"no {'value.code' if image else 'image in the folder'}; add it, or remove the trajectory")
        return None
    is_target = value.get("last_step_correct") is not False and value.get("last_step_redundant") is not True
    return Step(
        place,
        image,
        code,
        formats.get("opencua_relative"),
        text_of(value, "thought"),
        text_of(value, "action"),
        is_target=is_target,
    )

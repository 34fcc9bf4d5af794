"""Results of OSWorld's runners: `read_osworld`. Used by `imports`.

`<domain>/<example id>/` has `traj.jsonl`, a line per action (`step_num`, `action`, `response` if the runner keeps it,
`screenshot_file`: the screen after the action), the screenshots and the score in `result.txt`. Actions of one reply
have one `step_num`. An action is PyAutoGUI code, `WAIT`, `DONE`, `FAIL` or an object of computer_13. The instruction is
in the task's JSON, and the first screen is `step_0.png` if the runner keeps it; else the first action is left out.

Source: OSWorld's `lib_run_single.py`, as in OpenGVLab/ScaleCUA at 5d92feea, `evaluation/OSWorld`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deskhand.actions import formats
from deskhand.errors import ConfigError
from deskhand.integrations.recordings.trajectories import Problems, Step, Trajectory, image_in, json_lines, text_of

FIRST_SCREEN = "step_0.png"


def read_osworld(source: Path, tasks: Path, problems: Problems) -> Iterator[Trajectory]:
    """Read the trajectories below a folder. `tasks`: OSWorld's checkout, or a folder of `<domain>/<id>.json`."""
    files = sorted(path for path in source.rglob("traj.jsonl") if path.is_file())
    if not files:
        raise ConfigError(f"{source}: contains no traj.jsonl; give the result folder of an OSWorld run")
    for path in files:
        folder = path.parent
        instruction, reward = _instruction(folder, tasks, problems), _score(folder, problems)
        if instruction and reward is not None:
            name = f"{folder.parent.name}.{folder.name}" if folder != source else folder.name
            yield Trajectory(name, instruction, tuple(_steps(path, problems)), reward)


def _instruction(folder: Path, tasks: Path, problems: Problems) -> str:
    name = Path(folder.parent.name, f"{folder.name}.json")
    places = [tasks / below / name for below in ("", "examples", "evaluation_examples/examples")]
    file = next((place for place in places if place.is_file()), None)
    if file is None:
        problems.add(str(folder), f"the instruction is unknown, {name} is not below {tasks}; correct --tasks")
        return ""
    try:
        found = text_of(json.loads(file.read_bytes()), "instruction")
    except ValueError as error:
        found = ""
        problems.add(str(file), f"not JSON ({error}); repair it")
    else:
        if not found:
            problems.add(str(file), "no instruction; add it")
    return found


def _score(folder: Path, problems: Problems) -> float | None:
    file = folder / "result.txt"
    try:
        score = float(file.read_text())
    except (OSError, ValueError):
        score = math.nan
    if math.isfinite(score):
        return score
    problems.add(str(file), "no score, so the episode may have failed; run it again or write its score")
    return None


@dataclass
class _Actions:
    """The actions of one reply. `is_whole`: none is missing; `follows`: nothing is missing before the first."""

    number: int
    lines: list[tuple[str, dict[str, Any]]]
    follows: bool
    is_whole: bool = True


def _steps(path: Path, problems: Problems) -> Iterator[Step | None]:
    screen = path.parent / FIRST_SCREEN
    for actions in _replies(path, problems):
        place, first = actions.lines[0]
        code = [line["action"] for _, line in actions.lines]
        last = image_in(path.parent, text_of(actions.lines[-1][1], "screenshot_file"))
        if not actions.is_whole:
            problems.add(place, "an action of this step is missing; the step is left out")
            yield None
        elif not actions.follows or screen is None or not screen.is_file():
            name = screen.name if actions.follows and screen is not None else "of a line that cannot be read"
            problems.add(place, f"the screen before it ({name}) is missing; the step is left out")
            yield None
        else:
            is_json = any(isinstance(one, dict) for one in code)
            texts = [json.dumps(one) if isinstance(one, dict) else one for one in code]
            text = "\n".join(f"```json\n{one}\n```" if is_json else one for one in texts)
            action_format = formats.get("computer_13" if is_json else "pyautogui")
            yield Step(place, screen, text, action_format, reply=text_of(first, "response"))
        screen = last


def _replies(path: Path, problems: Problems) -> list[_Actions]:
    found: list[_Actions] = []
    is_gap = False
    for place, line in json_lines(path, problems):
        number = line.get("step_num") if line is not None else None
        if line is None or not isinstance(number, int) or not isinstance(line.get("action"), (str, dict)):
            if line is not None:
                error = text_of(line, "Error") or text_of(line, "error")
                what = f"the runner reports: {error}; run it again" if error else "no step_num or action; repair it"
                problems.add(place, what)
            is_gap = True
            continue
        before = found[-1].number if found else 0
        if number == before and found:
            found[-1].lines.append((place, line))
            found[-1].is_whole &= not is_gap
        else:
            if found and is_gap and number <= before + 1:
                found[-1].is_whole = False
            found.append(_Actions(number, [(place, line)], not is_gap and number == before + 1))
        is_gap = False
    return found

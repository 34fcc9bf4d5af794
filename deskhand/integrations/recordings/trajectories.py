"""Trajectories of other projects before they are imported: `Trajectory`, and what its readers share.

Used by the readers (`agentnet`, `scalecua`, `osworld`) and by `imports`. Readers do not open images or read actions;
`imports` does. What a reader cannot use is reported to a `Problems` with its file and line, and the rest is read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deskhand.actions.formats.base import ActionFormat


@dataclass(frozen=True)
class Step:
    """A screenshot and the action that followed. `place` is the file, line and step for messages."""

    place: str
    image: Path
    code: str
    """The action, in `action_format`."""
    action_format: ActionFormat
    thought: str = ""
    summary: str = ""
    """One sentence that says what is done."""
    reply: str = ""
    """The whole reply of the model that acted, in its own format."""
    is_target: bool = True
    """Whether to train on the action; False for mistakes, which stay in the history."""


@dataclass(frozen=True)
class Trajectory:
    """Steps of one task. `reward` is None if the source does not score it; below 1 it is not trained."""

    name: str
    instruction: str
    steps: tuple[Step | None, ...]
    """None for a step that cannot be read: its action is unknown, so what follows is another conversation."""
    reward: float | None = None


@dataclass
class Problems:
    """What was not imported: one line each, with the fix."""

    lines: list[str] = field(default_factory=list)

    def add(self, place: str, what: str) -> None:
        self.lines.append(f"{place}: {' '.join(what.split())}")


def text_of(row: Any, key: str) -> str:
    """Return a text of a row without surrounding white space; empty if it is missing or no text.

    Lone surrogates, which JSON allows and no tokenizer reads, are replaced by U+FFFD.
    """
    value = row.get(key) if isinstance(row, dict) else None
    return value.strip().encode("utf-16", "surrogatepass").decode("utf-16", "replace") if isinstance(value, str) else ""


def image_in(folder: Path, name: str) -> Path | None:
    """Return the path of a screenshot that a row names; None if the name leads out of the folder."""
    leads_out = "\0" in name or ".." in Path(name).parts or Path(name).is_absolute()
    return None if not name or leads_out else folder / name


def json_lines(path: Path, problems: Problems) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """Yield (place, object) for each line of a JSONL file, with None for a reported line that is no JSON object."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            place = f"{path}:{number}"
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                problems.add(place, f"not JSON ({error}); repair or remove the line")
                row = None
            else:
                if not isinstance(row, dict):
                    problems.add(place, "not a JSON object; repair or remove the line")
            yield place, row if isinstance(row, dict) else None

"""ScaleCUA's data: `read_scalecua`. Used by `imports`.

One step per line: `image` and `conversations`, a human's message with the task and the previous operations (`None`, or
lines `Step 1: ...`) and the reply with `<think>`, `<operation>` and `<action>`, or behind `Thought:` and `Action:`. x
and y are fractions of the screenshot. Steps of a trajectory have the same task and folder of images, in ascending
order, and may alternate with those of other trajectories. A `meta.json` names annotation files and image folders.

Source: OpenGVLab/ScaleCUA at 5d92feea, `agent-sft/internvl_chat/README.md`, `agent-sft/qwen-vl-finetune`.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from deskhand.actions.formats import scalecua
from deskhand.actions.formats.base import ActionFormat
from deskhand.actions.ops import REL_1
from deskhand.errors import ConfigError
from deskhand.integrations.recordings.trajectories import Problems, Step, Trajectory, image_in, json_lines, text_of

_FORMAT = cast(ActionFormat, replace(scalecua.FORMAT, space=lambda view: REL_1))
_IMAGE = re.compile(r"(?:Image-\d+:[ \t]*)?<image>\s*")
_PROMPT = re.compile(
    r"\b(?:Task|Instruction):\s*(?P<task>.+?)\s*\bPrevious (?:operations|actions):(?P<before>.*)", re.DOTALL
)
_OPERATION = re.compile(r"^\s*Step\s*\d+\s*:", re.MULTILINE)
_SECTION = re.compile(r"<(?P<name>think|operation|action)>(?P<text>.*?)</(?P=name)>", re.DOTALL)
_LABELED = re.compile(
    r"^(?P<name>Thought|Summary|Action)[ \t]*:(?P<text>.*?)(?=^(?:Thought|Summary|Action)[ \t]*:|\Z)",
    re.DOTALL | re.MULTILINE,
)
_LABELS = {"Thought": "think", "Summary": "operation", "Action": "action"}
_ROLES = {"human": "human", "user": "human", "gpt": "gpt", "assistant": "gpt"}
_NOTHING = (("human", ""), ("gpt", ""))
_END = re.compile(r"^\s*terminate\(", re.MULTILINE)


@dataclass
class _Open:
    """A trajectory whose end has not been read; `length` counts its operations, including those that were not read."""

    name: str
    task: str
    length: int
    steps: list[Step | None] = field(default_factory=list)

    def close(self) -> Trajectory:
        return Trajectory(self.name, self.task, tuple(self.steps))


def read_scalecua(source: Path, images: Path | None, problems: Problems) -> Iterator[Trajectory]:
    """Read an annotation file (JSONL) or all files of a `meta.json`.

    `images` replaces the image folder: that of the `meta.json`, or the annotation file's own.
    """
    if source.suffix != ".json":
        yield from _read_annotations(source, images or source.parent, problems)
        return
    for name, part in _parts(source).items():
        annotations = source.parent / text_of(part, "annotation")
        if not annotations.is_file():
            problems.add(
                f"{source}: {name}", f"annotation {annotations} does not exist; download it or remove the entry"
            )
            continue
        yield from _read_annotations(annotations, images or source.parent / text_of(part, "root"), problems)


def _parts(source: Path) -> dict[str, Any]:
    try:
        found = json.loads(source.read_bytes())
    except ValueError as error:
        raise ConfigError(f"{source}: not JSON ({error}); give ScaleCUA's meta.json or an annotation file") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{source}: not an object with annotation files; give ScaleCUA's meta.json")
    return found


def _read_annotations(path: Path, images: Path, problems: Problems) -> Iterator[Trajectory]:
    opened: dict[tuple[str, str], list[_Open]] = defaultdict(list)
    for place, row in json_lines(path, problems):
        if row is None:
            continue
        said = [(text_of(one, "from"), text_of(one, "value")) for one in _list(row.get("conversations"))]
        talk = [(_ROLES.get(role), text) for role, text in said if role != "system"]
        (_, asked), (_, reply) = talk if [role for role, _ in talk] == ["human", "gpt"] else _NOTHING
        image = row.get("image")
        names = [image] if isinstance(image, str) else _list(image)
        if len(names) != 1 or not isinstance(names[0], str) or not asked or not reply:
            problems.add(place, "not one image, a human's message and a reply; remove the line")
            continue
        task, number = _read_prompt(asked)
        key = (task, names[0].rpartition("/images/")[0] or names[0].rpartition("/")[0])
        going_on = next((one for one in opened[key] if one.length == number), None) if number else None
        if going_on is None:
            going_on = _Open(f"{path.stem}.{place.rpartition(':')[2]}", task, number)
            opened[key].append(going_on)
        going_on.steps.append(_step(place, image_in(images, names[0]), reply, problems))
        going_on.length = number + 1
        if _END.search(_sections(reply).get("action", "")):
            opened[key].remove(going_on)
            yield going_on.close()
    for one in (one for many in opened.values() for one in many):
        yield one.close()


def _read_prompt(text: str) -> tuple[str, int]:
    """Return the task, and the number of operations before. Without both headings the whole text is the task."""
    plain = _IMAGE.sub("", text).strip()
    found = _PROMPT.search(plain)
    return (found["task"], len(_OPERATION.findall(found["before"]))) if found else (plain, 0)


def _sections(reply: str) -> dict[str, str]:
    tagged = {found["name"]: found["text"].strip() for found in _SECTION.finditer(reply)}
    if "action" in tagged:
        return tagged
    labeled = {_LABELS[found["name"]]: found["text"].strip() for found in _LABELED.finditer(reply)}
    return tagged | (labeled if "action" in labeled else {"action": _SECTION.sub("", reply).strip()})


def _step(place: str, image: Path | None, reply: str, problems: Problems) -> Step | None:
    if image is None:
        problems.add(place, "no image in the folder; remove the line")
        return None
    found = _sections(reply)
    code = f"<action>\n{found['action']}\n</action>"
    return Step(place, image, code, _FORMAT, found.get("think", ""), found.get("operation", ""))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []

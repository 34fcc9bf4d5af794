"""The conformance corpus: replies as they are published, with what they mean. Invariant: what is expected was written from the
publication that a case names, not from what this parser says.

A file per dialect, `corpus/<dialect>.jsonl`, a case per line:

- `dialect`, `text`: the reply; `view`: [screen width, screen height, image width, image height] in pixels
- `expected`: ops as `plain.plain_op` gives them (points in screen pixels), or `{"error": "part of the reason"}`, perhaps with the
  `span` of characters that was not understood
- `source`: the document or file in which this shape is published; `emitted`: whether the text was written by our own emitter
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from deskhand.actions import dialects
from deskhand.actions.dialects.base import View
from deskhand.actions.plain import plain_op
from deskhand.errors import ConfigError, ParseError

_KEYS = {"dialect", "text", "view", "expected", "source", "emitted"}


@dataclass(frozen=True)
class Case:
    """One reply and what it means."""

    dialect: str
    text: str
    view: tuple[int, int, int, int]
    expected: list[dict[str, Any]] | dict[str, Any]
    source: str
    emitted: bool
    where: str
    """File and line."""


def cases(name: str) -> list[Case]:
    """The corpus of a dialect. Raises `ConfigError` for a line that is no case."""
    file = files("deskhand.actions") / "corpus" / f"{name}.jsonl"
    if not file.is_file():
        return []
    return list(_read(name, file.read_text(encoding="utf-8")))


def _read(name: str, text: str) -> Iterator[Case]:
    for number, line in enumerate(text.splitlines(), 1):
        where = f"corpus/{name}.jsonl line {number}"
        try:
            values = json.loads(line)
        except ValueError as error:
            raise ConfigError(f"{where}: not JSON: {error}") from None
        if set(values) != _KEYS or values["dialect"] != name or len(values["view"]) != 4:
            raise ConfigError(
                f"{where}: a case has the keys {', '.join(sorted(_KEYS))}, the file's dialect, and four numbers of a view"
            )
        yield Case(**values | {"view": tuple(values["view"])}, where=where)


def mismatch(case: Case) -> str | None:
    """What is wrong with how `case` is read, or None."""
    view = View(*case.view)
    try:
        ops = dialects.get(case.dialect).parse(case.text, view)
        found: Any = [plain_op(op, view.screen_width, view.screen_height) for op in ops]
    except ParseError as error:
        found = error
    if isinstance(case.expected, list):
        fine = found == case.expected
    else:
        fine = isinstance(found, ParseError) and case.expected["error"] in found.reason
        fine = fine and tuple(case.expected.get("span", found.span)) == found.span
    return None if fine else f"{case.where}: expected {json.dumps(case.expected, ensure_ascii=False)}, found {_said(found)}"


def _said(found: Any) -> str:
    return f"error: {found}" if isinstance(found, ParseError) else json.dumps(found, ensure_ascii=False)

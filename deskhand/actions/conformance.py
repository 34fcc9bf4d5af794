"""The conformance corpus: replies as they are published, with what they mean. Invariant: what is expected was written from the
publication that a case names, not from what this parser says.

A file per dialect, `corpus/<dialect>.jsonl`, a case per line:

- `dialect`, `text`: the reply; `view`: [screen width, screen height, image width, image height] in pixels
- `ops`: what it means, as `plain.plain_op` gives it (points in screen pixels), or `error`: what is wrong with it, in words, for
  replies that must be refused; perhaps with the `span` of characters that was not understood
- `source`: the document or file in which this shape is published; `emitted`: whether the text was written by our own emitter
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from deskhand.actions import formats
from deskhand.actions.formats.base import ScreenView
from deskhand.actions.serialization import OPS, op_to_json, with_defaults
from deskhand.errors import ConfigError, ParseError

_KEYS = {"dialect", "text", "view", "source", "emitted"}
_MEANINGS = ({"ops"}, {"error"}, {"error", "span"})


@dataclass(frozen=True)
class Case:
    """One reply and what it means: `ops`, or an `error`."""

    dialect: str
    text: str
    view: tuple[int, int, int, int]
    source: str
    emitted: bool
    where: str
    """File and line."""
    ops: list[dict[str, Any]] | None = None
    error: str | None = None
    span: list[int] | None = None


def load_cases(name: str, folder: Path | None = None) -> list[Case]:
    """The corpus of a dialect (of the package, or in a folder); none where there is no file.

    Raises `ConfigError` for a line that is no case.
    """
    if folder is not None and not folder.is_dir():
        raise ConfigError(f"{folder} is no folder; name one that holds a file <dialect>.jsonl for each dialect")
    file = (folder or files("deskhand.actions") / "corpus") / f"{name}.jsonl"
    if not file.is_file():
        return []
    return list(_read(name, file.read_bytes()))


def _read(name: str, content: bytes) -> Iterator[Case]:
    for number, line in enumerate(content.splitlines(), 1):
        where = f"{name}.jsonl line {number}"
        try:
            values = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{where}: not JSON: {error}") from None
        if not isinstance(values, dict) or values.get("dialect") != name:
            raise ConfigError(f"{where}: a case is an object with the dialect {name}")
        if not set(values) >= _KEYS or set(values) - _KEYS not in _MEANINGS:
            raise ConfigError(f"{where}: a case has the keys {', '.join(sorted(_KEYS))}, and ops or error")
        view, ops = values["view"], values.get("ops", [])
        if not isinstance(view, list) or len(view) != 4 or not all(type(side) is int and side > 0 for side in view):
            raise ConfigError(f"{where}: view is four sizes in pixels: screen width and height, image width and height")
        if not isinstance(ops, list) or not all(isinstance(op, dict) and op.get("op") in OPS for op in ops):
            raise ConfigError(f"{where}: ops is a list of objects whose op is one of {', '.join(OPS)}")
        if not isinstance(values["text"], str):
            raise ConfigError(f"{where}: text is the reply, a text")
        case: dict[str, Any] = {**values, "view": tuple(view), "where": where}
        yield Case(**case)


def mismatch(case: Case) -> str | None:
    """What is wrong with how `case` is read, or None."""
    view = ScreenView(*case.view)
    try:
        ops = formats.get(case.dialect).parse(case.text, view)
    except ParseError as error:
        if case.ops is not None:
            return f"{case.where}: expected {_said(case.ops)}, found error: {error}"
        fine = case.span is None or tuple(case.span) == error.span
        return None if fine else f"{case.where}: expected the span {case.span}, found error: {error}"
    found = [op_to_json(op, view.screen_width, view.screen_height) for op in ops]
    if case.ops is None:
        return f"{case.where}: expected an error ({case.error}), found {_said(found)}"
    fine = [*map(with_defaults, found)] == [*map(with_defaults, case.ops)]
    return None if fine else f"{case.where}: expected {_said(case.ops)}, found {_said(found)}"


def _said(ops: list[dict[str, Any]]) -> str:
    return json.dumps(ops, ensure_ascii=False)

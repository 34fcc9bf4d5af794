"""Conformance corpus: published replies of each format with their expected ops.

Expectations were written from the publication that a case cites, not from this parser's output. `corpus/FORMAT.jsonl`
has one case per line:

- `action_format`, `text`: the reply; `view`: [screen width, screen height, image width, image height] in pixels
- `ops`: expected ops as written by `op_to_json`, or `error`: why the reply must be rejected, optionally with the
  `span` at fault
- `source`: the publication; `emitted`: whether Deskhand's own emitter wrote the text
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

_KEYS = {"action_format", "text", "view", "source", "emitted"}
_EXPECTATIONS = ({"ops"}, {"error"}, {"error", "span"})


@dataclass(frozen=True)
class Case:
    """One reply with its expected `ops` or `error`."""

    action_format: str
    text: str
    view: tuple[int, int, int, int]
    source: str
    emitted: bool
    where: str
    """File name and line number."""
    ops: list[dict[str, Any]] | None = None
    error: str | None = None
    span: list[int] | None = None


def load_cases(name: str, folder: Path | None = None) -> list[Case]:
    """Load the cases of a format from the package or from `folder`; a missing file has no cases.

    Raises `ConfigError` if a line is not a valid case.
    """
    if folder is not None and not folder.is_dir():
        raise ConfigError(f"{folder}: not a directory; pass a directory of FORMAT.jsonl files")
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
        if not isinstance(values, dict) or values.get("action_format") != name:
            raise ConfigError(f"{where}: expected an object with action_format {name}")
        if not set(values) >= _KEYS or set(values) - _KEYS not in _EXPECTATIONS:
            raise ConfigError(f"{where}: expected the keys {', '.join(sorted(_KEYS))}, and ops or error")
        view, ops = values["view"], values.get("ops", [])
        if not isinstance(view, list) or len(view) != 4 or not all(type(side) is int and side > 0 for side in view):
            raise ConfigError(
                f"{where}: view must be [screen width, screen height, image width, image height] in pixels"
            )
        if not isinstance(ops, list) or not all(isinstance(op, dict) and op.get("op") in OPS for op in ops):
            raise ConfigError(f"{where}: ops must be a list of objects with op one of {', '.join(OPS)}")
        if not isinstance(values["text"], str):
            raise ConfigError(f"{where}: text must be a string")
        case: dict[str, Any] = {**values, "view": tuple(view), "where": where}
        yield Case(**case)


def mismatch(case: Case) -> str | None:
    """Parse a case and describe the difference from its expectation; None if it matches."""
    view = ScreenView(*case.view)
    try:
        ops = formats.get(case.action_format).parse(case.text, view)
    except ParseError as error:
        if case.ops is not None:
            return f"{case.where}: expected {_dumps(case.ops)}, found error: {error}"
        matches = case.span is None or tuple(case.span) == error.span
        return None if matches else f"{case.where}: expected the span {case.span}, found error: {error}"
    found = [op_to_json(op, view.screen_width, view.screen_height) for op in ops]
    if case.ops is None:
        return f"{case.where}: expected an error ({case.error}), found {_dumps(found)}"
    matches = [*map(with_defaults, found)] == [*map(with_defaults, case.ops)]
    return None if matches else f"{case.where}: expected {_dumps(case.ops)}, found {_dumps(found)}"


def _dumps(ops: list[dict[str, Any]]) -> str:
    return json.dumps(ops, ensure_ascii=False)

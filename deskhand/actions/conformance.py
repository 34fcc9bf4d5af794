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
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, PositiveInt, ValidationError, model_validator

from deskhand.actions import formats
from deskhand.actions.formats.base import ScreenView
from deskhand.actions.serialization import OPS, op_to_json, with_defaults
from deskhand.errors import ConfigError, ParseError


def _check_name(op: dict[str, Any]) -> dict[str, Any]:
    if op.get("op") not in tuple(OPS):
        raise ValueError(f"an op is one of {', '.join(OPS)}")
    return op


class Case(BaseModel):
    """One reply with its expected `ops` or `error`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    action_format: str
    text: str
    view: tuple[PositiveInt, PositiveInt, PositiveInt, PositiveInt]
    source: str
    emitted: bool
    where: str = ""
    """File name and line number."""
    ops: list[Annotated[dict[str, Any], AfterValidator(_check_name)]] | None = None
    error: str | None = None
    span: tuple[int, int] | None = None

    @model_validator(mode="after")
    def _has_expectation(self) -> Self:
        if (self.ops is None) == (self.error is None) or (self.span and self.ops is not None):
            raise ValueError("give ops, or error with or without span")
        return self


def load_cases(name: str, folder: Path | None = None) -> list[Case]:
    """Load the cases of a format from the package or from `folder`; a missing file has no cases.

    Raises `ConfigError` if a line is not a valid case.
    """
    if folder is not None and not folder.is_dir():
        raise ConfigError(f"{folder}: not a directory; pass a directory of FORMAT.jsonl files")
    file = (folder or files("deskhand.actions") / "corpus") / f"{name}.jsonl"
    lines = file.read_bytes().splitlines() if file.is_file() else []
    return [_load_case(name, f"{name}.jsonl line {number}", line) for number, line in enumerate(lines, 1)]


def _load_case(name: str, where: str, line: bytes) -> Case:
    try:
        case = Case.model_validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        key = "".join(f"{part}: " for part in first["loc"][:1])
        message = " ".join(first["msg"].removeprefix("Value error, ").split())
        raise ConfigError(f"{where}: {key}{message}") from None
    if case.action_format != name:
        raise ConfigError(f"{where}: expected action_format {name}, got {case.action_format}")
    return case.model_copy(update={"where": where})


def mismatch(case: Case) -> str | None:
    """Parse a case and describe the difference from its expectation; None if it matches."""
    view = ScreenView(*case.view)
    try:
        ops = formats.get(case.action_format).parse(case.text, view)
    except ParseError as error:
        if case.ops is not None:
            return f"{case.where}: expected {_dumps(case.ops)}, found error: {error}"
        matches = case.span is None or case.span == error.span
        return None if matches else f"{case.where}: expected the span {case.span}, found error: {error}"
    found = [op_to_json(op, view.screen_width, view.screen_height) for op in ops]
    if case.ops is None:
        return f"{case.where}: expected an error ({case.error}), found {_dumps(found)}"
    matches = [*map(with_defaults, found)] == [*map(with_defaults, case.ops)]
    return None if matches else f"{case.where}: expected {_dumps(case.ops)}, found {_dumps(found)}"


def _dumps(ops: list[dict[str, Any]]) -> str:
    return json.dumps(ops, ensure_ascii=False)

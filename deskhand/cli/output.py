"""Tables, and the same as JSON. Used by every command that prints a table.

A table in a pipe or file has one line per row, and nothing is cut; on a terminal it is as wide as the terminal, and the
first column is never cut. With `--json`, standard output has one JSON value and nothing else.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

if TYPE_CHECKING:
    from rich.table import Table

Json = Annotated[
    bool,
    Parameter(name="--json", negative="", help="Print JSON for programs; everything else goes to standard error."),
]
_PIPE_WIDTH = 100_000
"""Columns of a pipe, so that no cell is wrapped or cut."""


def print_json(value: Any) -> None:
    """Print a value as JSON: dataclasses as objects, infinity and NaN as null, other types as text."""
    print(json.dumps(_plain(value), indent=1, ensure_ascii=False, allow_nan=False))


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return [_plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


@contextmanager
def reserve_output(as_json: bool) -> Iterator[None]:
    """Send what is printed in the body to standard error if standard output is for JSON."""
    with redirect_stdout(sys.stderr) if as_json else nullcontext():
        yield


def print_columns(columns: Sequence[str], rows: Iterable[Sequence[str]], *, as_json: bool = False) -> None:
    """Print a table without borders, or a list of objects."""
    from rich.table import Table

    if as_json:
        print_json([dict(zip(columns, row, strict=True)) for row in rows])
        return
    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*row)
    print_table(table)


def print_table(table: Table) -> None:
    """Print a table with its title."""
    from rich.console import Console

    if sys.stdout.isatty():
        table.columns[0].no_wrap = True
        Console().print(table)
        return
    if table.title is not None:
        print(table.title)
        table.title = None  # it would be as narrow as the table
    console = Console(width=_PIPE_WIDTH, color_system=None)
    with console.capture() as captured:
        console.print(table)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))

"""What commands on runs have in common. Invariant: a run that a command opened is closed at its end, and has a report of what it
then holds.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

if TYPE_CHECKING:
    from rich.table import Table

    from deskhand.config import Config
    from deskhand.store.run import Run

WRONG = 2
"""Exit code for what the user can mend."""
Overrides = Annotated[
    list[str] | None, Parameter(name="--set", negative="", help="One setting, key.key=value; beats the file and the environment.")
]
Stage = Annotated[str | None, Parameter(help="One of the config file's stages, for instance smoke; full is the file as it is.")]
Flag = Parameter(negative="")


def resumed(folder: Path, overrides: list[str] | None) -> tuple[Config, Run]:
    """A run that goes on with the settings that it was started with, changed by `--set`."""
    from deskhand.config import load
    from deskhand.store.run import Run

    run = Run.open(folder)
    try:
        return load(None, overrides or (), base=(run.about.get("config", {}), f"{folder}/run.sqlite")), run
    except BaseException:
        run.close()
        raise


def print_table(table: Table) -> None:
    from rich.console import Console

    console = Console()
    console.print(table, width=None if console.is_terminal else 120)


@contextmanager
def opened(run: Run, again: str | None = None) -> Iterator[None]:
    """The run is closed at the end, with a report of what it then holds; one in which nothing happened is removed again."""
    _log_to(run.folder)
    with run:
        try:
            yield
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                print(f"\ninterrupted; to go on: {again or f'deskhand train --folder {run.folder} --resume'}", file=sys.stderr)
            with suppress(Exception):  # what ended the command is what has to be said
                _leave(run)
            raise
        _leave(run)


def _leave(run: Run) -> None:
    from deskhand.demo import discard_if_empty

    if not discard_if_empty(run):
        write_report(run)


def write_report(run: Run, out: Path | None = None) -> Path:
    from deskhand.view.from_run import report_view
    from deskhand.view.report import write

    return write(report_view(run), out or run.folder / "report.html")


def _log_to(folder: Path) -> None:
    """Log lines go to a file of the run, one JSON object a line, so that the terminal is for progress."""
    import structlog

    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.WriteLoggerFactory(file=(folder / "log.jsonl").open("a", encoding="utf-8", buffering=1)),
    )

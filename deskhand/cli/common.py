"""What commands on runs have in common. Invariant: a run that a command opened is closed at its end, and has a report of what it
then holds.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from deskhand.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Table

    from deskhand.config.load import Config
    from deskhand.store.run import Run

USER_ERROR = 2
"""Exit code for what the user can mend."""
Overrides = Annotated[
    list[str] | None,
    Parameter(name="--set", negative="", help="One setting, key.key=value; beats the file and the environment."),
]
Stage = Annotated[
    str | None, Parameter(help="One of the config file's stages, for instance smoke; full is the file as it is.")
]
Flag = Parameter(negative="")


def open_resumed_run(
    folder: Path, overrides: list[str] | None, config: Path | None = None, stage: str | None = None
) -> tuple[Config, Run]:
    """A run that goes on with the settings that it was started with, changed by `--set`.

    Where the command that began it is given again, with its `config`, what that says must be what it said then: raises
    `ConfigError` with the first key that differs.
    """
    from deskhand.config.load import config_of_run, load_config
    from deskhand.store.run import Run

    if stage is not None and config is None:
        load_config(None, stage=stage)
    run = Run.open(folder)
    try:
        if config is not None:
            given, began = (
                load_config(config, overrides or (), os.environ, stage=stage),
                config_of_run(run.metadata, folder),
            )
            if differs := next(_differences(began.model_dump(mode="json"), given.model_dump(mode="json")), None):
                raise ConfigError(
                    f"{folder} was begun with other settings than {config} gives now ({differs}); leave the file out and change "
                    "single ones by --set, or name a new folder"
                )
        return config_of_run(run.metadata, folder, overrides or ()), run
    except BaseException:
        run.close()
        raise


def _differences(began: Mapping[str, Any], given: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """`key.key: before, now` of the settings that differ."""
    for key, value in given.items():
        before = began.get(key)
        if isinstance(value, dict) and isinstance(before, dict):
            yield from _differences(before, value, f"{path}{key}.")
        elif value != before:
            yield f"{path}{key} was {before!r}, is {value!r}"


def print_table(table: Table) -> None:
    from rich.console import Console

    Console(width=None if sys.stdout.isatty() else 120).print(table)


def current_command() -> str:
    """The command that is running, as it was typed: that of an evaluation, a warm start or a resumed run goes on with it."""
    return shlex.join(["deskhand", *sys.argv[1:]])


@contextmanager
def run_context(run: Run, again: str | None = None) -> Iterator[None]:
    """The run is closed at the end, with a report of what it then holds; one in which nothing happened is removed again."""
    from deskhand.store.run_log import log_to_run

    log_to_run(run.folder)
    with run:
        try:
            yield
        except BaseException as error:
            is_kept = True
            with suppress(Exception):  # what ended the command is what has to be said
                is_kept = _leave(run)
            if isinstance(error, KeyboardInterrupt):
                way = again or f"deskhand train --folder {run.folder} --resume"
                print(f"\ninterrupted; {f'to go on: {way}' if is_kept else 'nothing was played yet'}", file=sys.stderr)
            raise
        _leave(run)


def _leave(run: Run) -> bool:
    """Write the report, or remove a run in which nothing happened; returns whether it is there still."""
    from deskhand.recipes.train import discard_if_empty

    if discard_if_empty(run):
        return False
    write_report(run)
    return True


def write_report(run: Run, out: Path | None = None) -> Path:
    from deskhand.reporting.build_report import build_report_view
    from deskhand.reporting.html_report import write

    return write(build_report_view(run), out or run.folder / "report.html")

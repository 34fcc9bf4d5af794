"""Options, exit codes and run handling shared by the commands."""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from cyclopts import Parameter

from deskhand.errors import ConfigError

if TYPE_CHECKING:
    from deskhand.config.load import Config
    from deskhand.reporting.select_episodes import Selection
    from deskhand.store.run import Run

USER_ERROR = 2
"""Exit code for errors that the user can fix."""
INTERRUPTED = 130
PATIENCE_S = 2.0
"""Between Ctrl-C and the line that says what the command waits for."""
T = TypeVar("T")
Overrides = Annotated[
    list[str] | None,
    Parameter(name="--set", negative="", help="Setting as key.key=value; overrides the file and the environment."),
]
Profile = Annotated[
    str | None, Parameter(help="Profile from the config file, e.g. smoke. Default: full, the file as written.")
]
Flag = Parameter(negative="")
TlsCertificate = Annotated[Path | None, Parameter(help="File with the certificate chain, for HTTPS.")]
TlsKey = Annotated[Path | None, Parameter(help="File with the certificate's private key.")]


def parse_size(option: str, text: str) -> tuple[int, int]:
    """Return width and height of `WIDTHxHEIGHT`. Raises `ConfigError`."""
    found = re.fullmatch(r"([1-9]\d{0,4})x([1-9]\d{0,4})", text)
    if found is None:
        raise ConfigError(f"{option}: expected WIDTHxHEIGHT such as 1920x1080, got {text}")
    return int(found[1]), int(found[2])


def check_tls(certificate: Path | None, key: Path | None) -> None:
    """Raise `ConfigError` if only one of the two files is given."""
    if (certificate is None) != (key is None):
        raise ConfigError("--tls-certificate and --tls-key: both are required for HTTPS")


def load_settings(config: Path | None, overrides: list[str] | None, profile: str | None = None) -> Config:
    """Settings of a command from file, environment and `--set`."""
    from deskhand.config.load import load_config

    return load_config(config, overrides or (), os.environ, profile=profile)


def load_run_settings(config: Path | None, overrides: list[str] | None, profile: str | None = None) -> Config:
    """Settings of a run, with an agent that fits its model."""
    from deskhand.recipes.model_defaults import fit_config

    return fit_config(load_settings(config, overrides, profile))


def open_resumed_run(
    run_dir: Path, overrides: list[str] | None, config: Path | None = None, profile: str | None = None
) -> tuple[Config, Run]:
    """Open a run with its original settings, changed by `--set`. Raises `ConfigError` with the first key that differs
    if `config` is given and differs from them."""
    from deskhand.config.load import config_of_run
    from deskhand.store.run import Run

    if profile is not None and config is None:
        load_settings(None, None, profile)
    run = Run.open(run_dir)
    try:
        if config is not None:
            settings, original = load_run_settings(config, overrides, profile), config_of_run(run.metadata, run_dir)
            held_out = {
                key: getattr(original.suite, key)
                for key in ("eval_fraction", "validation_fraction")
                if getattr(settings.suite, key) is None
            }
            settings = settings.model_copy(update={"suite": settings.suite.model_copy(update=held_out)})
            if differs := next(_differences(original.model_dump(mode="json"), settings.model_dump(mode="json")), None):
                raise ConfigError(
                    f"{run_dir}: the run has other settings than {config} ({differs}); remove the file "
                    "and change single settings with --set, or use a new directory"
                )
        return config_of_run(run.metadata, run_dir, overrides or ()), run
    except BaseException:
        run.close()
        raise


def _differences(original: Mapping[str, Any], settings: Mapping[str, Any], path: str = "") -> Iterator[str]:
    for key, value in settings.items():
        before = original.get(key)
        if isinstance(value, dict) and isinstance(before, dict):
            yield from _differences(before, value, f"{path}{key}.")
        elif value != before:
            yield f"{path}{key} was {before!r}, now {value!r}"


def current_command() -> str:
    """The command line of this process, which resumes an evaluation, a warm start or a resumed run."""
    return shlex.join(["deskhand", *sys.argv[1:]])


def run_interruptible(work: Coroutine[Any, Any, T]) -> T:
    """Run `work`. Ctrl-C or SIGTERM cancels it once its training step ends; a second one ends the process at once.

    The second loses what SIGKILL loses: episodes in flight, and steps since the last checkpoint. Raises
    `KeyboardInterrupt`.
    """
    import asyncio

    num_signals = 0

    async def main() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def interrupt(*_: object) -> None:
            nonlocal num_signals
            num_signals += 1
            if num_signals > 1:
                os.write(2, b"\ninterrupted; stopped at once, resume with deskhand train --resume RUN_DIR\n")
                os._exit(INTERRUPTED)
            loop.call_soon_threadsafe(task.cancel)
            loop.call_soon_threadsafe(loop.call_later, PATIENCE_S, explain)

        def explain() -> None:
            print("\nfinishing the training step; Ctrl-C again stops at once", file=sys.stderr)

        before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            return await work
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    try:
        return asyncio.run(main())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


@contextmanager
def run_context(run: Run, resume_command: str | None = None) -> Iterator[None]:
    """Close the run at the end and write its report, or remove it if nothing happened.

    An interrupt gets the message that names the command to resume with.
    """
    from deskhand.store.run_log import log_to_run

    with run:
        try:
            log_to_run(run.folder)
            yield
            _finish(run)
        except BaseException as error:
            is_kept = True
            with suppress(Exception):  # the first error is the one to report
                is_kept = _finish(run)
            if isinstance(error, KeyboardInterrupt):
                command = resume_command or shlex.join(["deskhand", "train", "--resume", str(run.folder)])
                hint = f"resume with: {command}" if is_kept else "nothing to resume"
                raise KeyboardInterrupt(f"interrupted; {hint}") from None
            raise


def _finish(run: Run) -> bool:
    """Write the report, or remove a run in which nothing happened; returns whether the run still exists."""
    from deskhand.recipes.train import discard_if_empty

    if discard_if_empty(run):
        return False
    write_report(run)
    return True


def write_report(run: Run, out: Path | None = None, selection: Selection | None = None) -> Path:
    """Write the report, by default into the run directory; returns its path."""
    from deskhand.reporting.build_report import build_report_view
    from deskhand.reporting.html_report import write

    return write(build_report_view(run, selection), out or run.folder / "report.html")

"""`deskhand demo`: train the bundled policy and compare it before and after."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from deskhand.cli.common import Flag, Overrides, load_run_settings, open_resumed_run
from deskhand.cli.output import Json, reserve_output
from deskhand.cli.train import run_and_compare
from deskhand.errors import ConfigError

if TYPE_CHECKING:
    from deskhand.config.load import Config
    from deskhand.store.run import Run

CONFIG = Path("tiny_cpu")


def demo(
    run_dir: Path = Path("runs/demo"),
    /,
    *,
    resume: Annotated[bool, Flag] = False,
    restart: Annotated[bool, Flag] = False,
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Train the bundled policy on local desktops, and show held-out success before and after.

    Parameters
    ----------
    run_dir
        Run directory.
    resume
        Resume the existing run.
    restart
        Start over. The existing run is renamed to RUN_DIR-1, RUN_DIR-2, ...
    """
    if resume and restart:
        raise ConfigError("--resume and --restart are mutually exclusive")
    with reserve_output(as_json):
        config, run = _open_demo(run_dir, overrides, resume=resume, restart=restart)
    run_and_compare(config, run, as_json=as_json)


def _open_demo(run_dir: Path, overrides: list[str] | None, *, resume: bool, restart: bool) -> tuple[Config, Run]:
    """Open the existing run, or create a new one. On a terminal, a question decides unless an option does."""
    from deskhand.recipes import train as recipe
    from deskhand.recipes.suite import hold_out_by_default

    progress = recipe.progress_of(run_dir)
    if progress is None and resume:
        raise ConfigError(f"--resume: no run to resume in {run_dir}")
    if progress is not None and not restart:
        step, total = progress
        found = f"{run_dir} contains a run at step {step} of {total}"
        if not resume and sys.stdin.isatty() and sys.stdout.isatty():
            restart = ask(f"{found}. Resume it or start over? [resume/restart] ") == "restart"
        elif not resume:
            print(f"{found}; resuming it (--restart starts over)")
    if progress is not None and not restart:
        return open_resumed_run(run_dir, overrides)
    config = hold_out_by_default(load_run_settings(CONFIG, overrides))
    archived = recipe.archive_run(run_dir)
    if archived is not None:
        print(f"the previous run is now in {archived}")
    return config, recipe.create_run(config, run_dir, "deskhand demo")


def ask(question: str) -> str:
    """Return "resume" or "restart"; a unique prefix suffices."""
    words = ("resume", "restart")
    while True:
        try:
            answer = input(question).strip().lower()
        except EOFError:
            raise KeyboardInterrupt from None
        matching = [word for word in words if answer and word.startswith(answer)]
        if len(matching) == 1:
            return matching[0]

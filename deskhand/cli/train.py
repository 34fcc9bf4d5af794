"""`deskhand train`: train with a config file, here or with AReaL."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from deskhand.cli.common import (
    Overrides,
    Profile,
    current_command,
    load_run_settings,
    open_resumed_run,
    run_context,
    run_interruptible,
)
from deskhand.cli.output import Json, print_json, print_table, reserve_output
from deskhand.errors import ConfigError

if TYPE_CHECKING:
    from deskhand.config.load import Config
    from deskhand.store.run import Run

STARTED = time.monotonic()
"""Start of the process, for the time until the first update."""


def train(
    config: Path | None = None,
    run_dir: Path | None = None,
    /,
    *,
    resume: Annotated[Path | None, Parameter(negative="")] = None,
    trainer: Literal["local", "areal"] = "local",
    profile: Profile = None,
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Train with a config file; evaluate before and after.

    Parameters
    ----------
    config
        Config file (YAML), or the name of a shipped one, such as tiny_cpu.
    run_dir
        Run directory, new or empty.
    resume
        Resume the run in this directory, with its own settings; replaces CONFIG and RUN_DIR.
    trainer
        Deskhand's trainer, or AReaL (experiments are named areal/...), which resumes by itself.
    """
    if resume is not None:
        if config is not None or trainer == "areal":
            raise ConfigError(
                f"--resume {resume}: a resumed run keeps its settings; remove "
                + (f"{config}, or change single settings with --set" if config is not None else "--trainer areal")
            )
        _resume(resume, profile, overrides, as_json=as_json)
        return
    if config is None or run_dir is None:
        example = "areal/tiny_cpu" if trainer == "areal" else "tiny_cpu"
        raise ConfigError(
            "train: CONFIG and RUN_DIR are required, for example deskhand train "
            + (f"{example} runs/mine" if trainer == "local" else f"{example} runs/areal --trainer areal")
        )
    if trainer == "areal":
        from deskhand.integrations.areal import launcher

        raise SystemExit(launcher.train(config, run_dir, profile=profile, overrides=overrides or ()))
    from deskhand.recipes.suite import hold_out_by_default
    from deskhand.recipes.train import create_run

    settings = hold_out_by_default(load_run_settings(config, overrides, profile))
    with reserve_output(as_json):
        run = create_run(settings, run_dir, f"deskhand train {config}")
    run_and_compare(settings, run, as_json=as_json)


def _resume(run_dir: Path, profile: str | None, overrides: list[str] | None, *, as_json: bool) -> None:
    settings, run = open_resumed_run(run_dir, overrides, profile=profile)
    if "sft" in run.metadata:
        run.close()
        raise ConfigError(
            f"{run_dir}: contains a supervised warm start; resume it with deskhand sft --resume {run_dir}"
        )
    run_and_compare(settings, run, current_command(), as_json=as_json)


def run_and_compare(config: Config, run: Run, resume_command: str | None = None, *, as_json: bool = False) -> None:
    """Train a run, then print the success of `evaluation` before and after."""
    from deskhand.recipes.plan import check_memory
    from deskhand.recipes.train import run_training
    from deskhand.reporting.run_view import report_data
    from deskhand.reporting.terminal import TerminalDisplay, comparison, warnings_of

    with reserve_output(as_json), run_context(run, resume_command), TerminalDisplay() as display:
        check_memory(config)
        summary = run_interruptible(run_training(config, run, display, STARTED))
    if as_json:
        ends = {"before": summary.before, "after": summary.after}
        reports = {name: None if found is None else report_data(found) for name, found in ends.items()}
        print_json({"run_dir": run.folder.resolve(), "steps": summary.steps, **reports})
        return
    if summary.before and summary.after:
        print_table(comparison(summary.before, summary.after))
        for warning in warnings_of(summary.before, summary.after):
            print(f"warning: {warning}")
    print(f"report: {(run.folder / 'report.html').resolve()}")

"""The commands that have to do with AReaL. They import what they need when they are called."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from deskhand.errors import ConfigError

WRONG = 2
Trainer = Literal["local", "areal"]
areal_app = App(name="areal", help="AReaL as the trainer, on one machine or on many.")


@areal_app.command
def doctor(*, fix: Annotated[bool, Parameter(negative="")] = False) -> None:
    """Check AReaL's environment; exits with 2 when something needed is missing.

    Parameters
    ----------
    fix
        Mend what can be mended: make the environment, let pydrive2 answer for pydrive.
    """
    from deskhand.doctor.check_machine import format_results
    from deskhand.integrations.areal import doctor as areal

    if fix:
        for line in areal.install_fixes(Path(__file__).parents[2]):
            print(f"done  {line}")
    findings = areal.check_areal()
    print("\n".join(format_results(findings)))
    if any(finding.needed and not finding.ok for finding in findings):
        raise SystemExit(WRONG)


@areal_app.command
def play(
    config: Path,
    *,
    folder: Path,
    overrides: Annotated[list[str] | None, Parameter(name="--set", negative="")] = None,
) -> None:
    """Play an experiment's tasks for a run of AReaL in its online mode, until all rows are played.

    Parameters
    ----------
    config
        The experiment that `deskhand train --trainer areal` runs, with `rollout.agent.mode: online`.
    folder
        That run's folder.
    overrides
        Settings of the experiment, KEY=VALUE.
    """
    from deskhand.integrations.areal.launcher import run_online as started

    if code := started(config, folder, overrides or ()):
        raise SystemExit(code)


def train_by_areal(config: Path | None, folder: Path, stage: str | None, overrides: Sequence[str] | None) -> int:
    """`deskhand train --trainer areal`; returns the exit code."""
    from deskhand.integrations.areal.launcher import train

    if config is None:
        raise ConfigError("no experiment was given; for instance configs/areal/embedded_tiny_cpu.yaml")
    return train(config, folder, profile=stage, overrides=overrides or ())

"""`deskhand areal`: AReaL as the trainer. `deskhand train --trainer areal` starts a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App

from deskhand.cli.common import Flag, Overrides
from deskhand.cli.doctor import print_results
from deskhand.cli.output import Json, reserve_output

areal_app = App(name="areal", help="AReaL as the trainer, on one machine or a cluster.")


@areal_app.command
def doctor(*, fix: Annotated[bool, Flag] = False, as_json: Json = False) -> None:
    """Check AReaL's environment. Exits with 2 if a required check fails.

    Parameters
    ----------
    fix
        Apply the available fixes: create the environment, install a pydrive stand-in based on pydrive2.
    """
    from deskhand.integrations.areal import doctor as areal

    with reserve_output(as_json):
        if fix:
            for line in areal.install_fixes():
                print(f"done  {line}")
        results = areal.check_areal()
    print_results(results, as_json=as_json)


@areal_app.command
def run_online(experiment: Path, run_dir: Path, /, *, overrides: Overrides = None) -> None:
    """Run an experiment's tasks for an AReaL run in online mode, until all are finished.

    Parameters
    ----------
    experiment
        Experiment file of `deskhand train --trainer areal`, with `rollout.agent.mode: online`.
    run_dir
        Run directory of that run.
    """
    from deskhand.integrations.areal.launcher import run_online as run_tasks

    if code := run_tasks(experiment, run_dir, overrides or ()):
        raise SystemExit(code)

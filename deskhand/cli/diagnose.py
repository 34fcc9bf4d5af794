"""`deskhand diagnose`: what is wrong with a run, or slow."""

from __future__ import annotations

from pathlib import Path

from deskhand.cli.output import Json, print_json


def diagnose(run_dir: Path, /, *, as_json: Json = False) -> None:
    """Say what is wrong with a run or slow, with evidence and what to change. Nothing is changed.

    Works for finished runs and for those that are being written.

    Parameters
    ----------
    run_dir
        Run directory.
    """
    from deskhand.reporting.diagnosis import diagnose as find_issues
    from deskhand.reporting.run_view import open_run

    with open_run(run_dir) as run:
        found = find_issues(run)
    if as_json:
        print_json(found)
    else:
        print("\n".join(found.lines()))

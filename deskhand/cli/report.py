"""`deskhand report`: the HTML report of a run."""

from __future__ import annotations

from pathlib import Path

from deskhand.cli.common import write_report


def report(run_dir: Path, /, *, out: Path | None = None) -> None:
    """Write the HTML report of a run, as one file.

    Parameters
    ----------
    run_dir
        Run directory.
    out
        Output file (default: report.html in the run directory).
    """
    from deskhand.reporting.run_view import open_run

    with open_run(run_dir) as run:
        print(write_report(run, out))

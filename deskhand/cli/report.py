"""`deskhand report`: the HTML report of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from deskhand.cli.common import Flag, write_report
from deskhand.errors import ConfigError


def report(
    run_dir: Path,
    /,
    *,
    out: Path | None = None,
    episodes: int | None = None,
    episode: Annotated[list[str] | None, Parameter(negative="")] = None,
    group: Annotated[list[str] | None, Parameter(negative="")] = None,
    failed: Annotated[bool, Flag] = False,
) -> None:
    """Write the HTML report of a run, as one file: results, alerts, reasons of failure, and a selection of episodes.

    Training episodes are selected as whole groups, those with different rewards first.

    Parameters
    ----------
    run_dir
        Run directory.
    out
        Output file (default: report.html in the run directory).
    episodes
        Episodes to show before, in and after training (default: 36).
    episode
        Show this episode, by its id or the beginning of it; repeatable. Others are shown only if they are named, too.
    group
        Show all episodes of this group, by its id or the beginning of it; repeatable.
    failed
        Leave out successful episodes.
    """
    from deskhand.reporting.run_view import open_run
    from deskhand.reporting.select_episodes import EPISODES_PER_PHASE, Selection

    if episodes is not None and episodes < 1:
        raise ConfigError(f"--episodes: must be at least 1, got {episodes}")
    selection = Selection(episodes or EPISODES_PER_PHASE, tuple(episode or ()), tuple(group or ()), failed)
    with open_run(run_dir) as run:
        print(write_report(run, out, selection))

"""`deskhand import`: trajectories of other projects as demonstrations."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

from deskhand.cli.common import Flag, Overrides, Profile, load_run_settings
from deskhand.errors import ConfigError

MAX_SHOWN = 20
"""Maximum number of problems printed; all are in `problems.txt`."""


def import_demonstrations(
    config: Path,
    source: Path,
    /,
    *,
    format: Literal["agentnet", "scalecua", "osworld"],
    out: Path,
    images: Path | None = None,
    tasks: Path | None = None,
    limit: int | None = None,
    no_thoughts: Annotated[bool, Flag] = False,
    profile: Profile = None,
    overrides: Overrides = None,
) -> None:
    """Import trajectories of other projects as demonstrations: deskhand sft CONFIG RUN_DIR --episodes OUT.

    Parameters
    ----------
    config
        Config of the warm start, a file or the name of a shipped one; its agent's prompts and action format are used.
    source
        AgentNet: a JSONL file. ScaleCUA: an annotation file, or meta.json. OSWorld: a folder of results (traj.jsonl).
    format
        Data set.
    out
        Output folder, new or empty; a recording as of deskhand record.
    images
        Folder with the screenshots (default: next to the file, or as meta.json says).
    tasks
        OSWorld's checkout, or a folder of its tasks, which have the instructions.
    limit
        Number of trajectories to read.
    no_thoughts
        Write the actions alone, without the thoughts before them.
    """
    from deskhand.integrations.recordings.imports import import_trajectories

    if limit is not None and limit < 1:
        raise ConfigError(f"--limit: must be at least 1, got {limit}")
    settings = load_run_settings(config, overrides, profile)
    counts = import_trajectories(
        settings.agent,
        settings.model,
        source,
        format,
        out,
        images=images,
        tasks=tasks,
        limit=limit,
        thoughts=not no_thoughts,
    )
    lines = counts.problems.lines
    for line in lines[:MAX_SHOWN]:
        print(line, file=sys.stderr)
    if len(lines) > MAX_SHOWN:
        print(f"{len(lines) - MAX_SHOWN} more in {out / 'problems.txt'}", file=sys.stderr)
    print(f"{counts.replies} replies to train on in {out}, of {counts.trajectories} trajectories")
    if counts.low_reward:
        print(f"not trained: {counts.low_reward} trajectories with a score below 1")
    if counts.left_out:
        print("actions left out: " + ", ".join(f"{count} {name}" for name, count in counts.left_out.most_common()))
    if counts.without_thought:
        print(f"thoughts left out: {counts.without_thought} (not possible in the action format)")

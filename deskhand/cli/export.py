"""`deskhand export`: a checkpoint or the episodes of a run as plain files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from deskhand.cli.common import Flag
from deskhand.errors import ConfigError


def export(
    run_dir: Path,
    /,
    *,
    out: Path,
    step: int | None = None,
    adapter: Annotated[bool, Flag] = False,
    episodes: Annotated[bool, Flag] = False,
    scrub: Annotated[bool, Flag] = False,
) -> None:
    """Export a checkpoint as a Hugging Face folder with a model card, or the episodes as plain files.

    Parameters
    ----------
    run_dir
        Run directory.
    out
        Output folder, new or empty.
    step
        Checkpoint step (default: the last).
    adapter
        Write LoRA alone instead of the merged weights.
    episodes
        Write the finished episodes instead of weights: JSON, token arrays as safetensors, screenshots as PNG.
    scrub
        With --episodes: replace secrets in texts, and leave out token arrays and screenshots.
    """
    from deskhand.recipes.export_model import export_model
    from deskhand.reporting.run_view import open_run
    from deskhand.store.export import export_run

    if episodes and (adapter or step is not None):
        raise ConfigError("--episodes: exports no weights; remove --adapter and --step")
    if scrub and not episodes:
        raise ConfigError("--scrub: is for episodes; add --episodes")
    with open_run(run_dir) as run:
        if episodes:
            print(f"{export_run(run, out, scrub=scrub)} episodes in {out}")
        else:
            print(export_model(run, out, step=step, adapter=adapter))

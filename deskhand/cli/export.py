"""`deskhand export`: a checkpoint, the episodes of a run as plain files, or one episode as a video."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

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
    format: Literal["datasets", "trl", "verl", "areal", "verifiers"] | None = None,
    form: Literal["rl", "sft"] = "rl",
    episode: str | None = None,
    step_s: float = 1.0,
) -> None:
    """Export a checkpoint as a Hugging Face folder with a model card, the episodes as plain files, or one as a video.

    Parameters
    ----------
    run_dir
        Run directory.
    out
        Output folder, new or empty; for a video a new file that ends in .gif or .mp4.
    step
        Checkpoint step (default: the last).
    adapter
        Write LoRA alone instead of the merged weights.
    episodes
        Write the finished episodes instead of weights: JSON, token arrays as safetensors, screenshots as PNG.
    scrub
        With --episodes: replace secrets in texts, and leave out token arrays and screenshots.
    format
        Write the training episodes as a dataset of another trainer.
    form
        With --format: "rl" writes all scored episodes with log-probs and advantages, "sft" the successful ones.
    episode
        Write this episode, by its id or the beginning of it, as an animated GIF or MP4 with its actions drawn on it.
    step_s
        With --episode: seconds per step.
    """
    from deskhand.integrations.recordings.export import export_recordings
    from deskhand.recipes.export_model import export_model
    from deskhand.reporting.run_view import open_run
    from deskhand.store.export import export_run

    if episode is not None and (episodes or scrub or adapter or step is not None):
        raise ConfigError("--episode: writes one video; remove --episodes, --scrub, --adapter and --step")
    if not 0 < step_s <= 60:
        raise ConfigError(f"--step-s: must be above 0 and at most 60, got {step_s:g}")
    if episodes and (adapter or step is not None):
        raise ConfigError("--episodes: exports no weights; remove --adapter and --step")
    if scrub and not episodes:
        raise ConfigError("--scrub: is for episodes; add --episodes")
    if format is not None and (episodes or scrub or adapter or step is not None or episode is not None):
        raise ConfigError("--format: writes a dataset; remove --episode, --episodes, --scrub, --adapter and --step")
    with open_run(run_dir) as run:
        if format is not None:
            counts = export_recordings(run, out, format, form)
            left_out = "".join(f"; left out: {count} {cause}" for cause, count in counts.left_out.items())
            print(f"{counts.rows} rows in {out}{left_out}")
        elif episode is not None:
            from deskhand.reporting.episode_video import write_video

            print(write_video(run, episode, out, step_s=step_s))
        elif episodes:
            print(f"{export_run(run, out, scrub=scrub)} episodes in {out}")
        else:
            print(export_model(run, out, step=step, adapter=adapter))

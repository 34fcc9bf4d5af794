"""`deskhand sft`: supervised warm start on demonstrations."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from deskhand.cli.common import Overrides, Profile, current_command, load_run_settings, open_resumed_run, run_context
from deskhand.errors import ConfigError


def sft(
    config: Path | None = None,
    run_dir: Path | None = None,
    /,
    *,
    resume: Annotated[Path | None, Parameter(negative="")] = None,
    episodes: Annotated[list[Path] | None, Parameter(negative="")] = None,
    profile: Profile = None,
    overrides: Overrides = None,
) -> None:
    """Fine-tune a model on demonstrations before reinforcement learning. Rerun the same command to resume.

    Parameters
    ----------
    config
        Config file (YAML), or the name of a shipped one, such as tiny_cpu; must match the original settings when
        resuming.
    run_dir
        Run directory.
    resume
        Resume the warm start in this directory; replaces CONFIG and RUN_DIR.
    episodes
        Run directory with successful training episodes, or output directory of deskhand record; repeatable (default:
        the oracle plays).
    """
    from deskhand.recipes.plan import check_memory
    from deskhand.recipes.sft import run_sft_recipe
    from deskhand.recipes.suite import hold_out_by_default
    from deskhand.recipes.train import create_run
    from deskhand.reporting.terminal import TerminalDisplay

    if resume is not None and config is not None:
        raise ConfigError(f"--resume {resume}: a resumed warm start keeps its settings; remove {config}")
    folder = run_dir if resume is None else resume
    if folder is None or (config is None and resume is None):
        raise ConfigError("sft: CONFIG and RUN_DIR are required, for example deskhand sft tiny_cpu runs/warm")
    if resume is not None or (folder / "run.sqlite").exists():
        episodes = _sources(folder, episodes)
        settings, run = open_resumed_run(folder, overrides, config, profile)
    else:
        settings = hold_out_by_default(load_run_settings(config, overrides, profile))
        metadata = {"sft": [str(path.resolve()) for path in episodes or []]}
        run = create_run(settings, folder, f"deskhand sft {config}", metadata)
    with run_context(run, current_command()), TerminalDisplay() as display:
        check_memory(settings, is_sft=True)
        path = run_sft_recipe(settings, run, episodes or [], display)
    print(f"checkpoint: {path}")
    print(f"train it with: deskhand train CONFIG RUN_DIR --set model={path}")


def _sources(run_dir: Path, episodes: list[Path] | None) -> list[Path]:
    """The sources of an existing warm start. Raises `ConfigError` if there is none, or `episodes` differ."""
    from deskhand.store.run import Run

    with Run.open(run_dir, read_only=True) as run:
        stored = run.metadata.get("sft")
    if stored is None:
        raise ConfigError(f"{run_dir}: contains a run that is not a warm start; use a new directory")
    if episodes and [str(path.resolve()) for path in episodes] != stored:
        raise ConfigError(
            f"{run_dir}: contains a warm start on {', '.join(stored) or 'the oracle'}; use a new directory"
        )
    return [Path(name) for name in stored]

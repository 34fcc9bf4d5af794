"""`deskhand try`: a task in the browser, played by a person."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from deskhand.cli.common import Overrides, Profile, current_command, load_settings, open_resumed_run, run_context
from deskhand.errors import ConfigError

if TYPE_CHECKING:
    from deskhand.rollout.episode_record import EpisodeResult


def try_task(
    task: str,
    run_dir: Path = Path("runs/try"),
    /,
    *,
    seed: int | None = None,
    max_steps: int | None = None,
    config: Path | None = None,
    port: int = 0,
    profile: Profile = None,
    overrides: Overrides = None,
) -> None:
    """Play a task by hand in a web page on this machine. It is judged, and kept as a demonstration for deskhand sft.

    Ctrl-C ends the page, and a task that is not finished.

    Parameters
    ----------
    task
        Family from deskhand tasks list, a YAML task file, or FILE.py:FAMILY.
    run_dir
        Run directory for the demonstrations; repeat the command to add more.
    seed
        Variant of the family (default: the next one of this directory).
    max_steps
        Maximum number of actions (default: the task's).
    config
        Config file whose agent, model and desktops are used; must match the original when adding demonstrations.
    port
        Port of the page on 127.0.0.1; 0 selects a free one.
    """
    import asyncio

    from deskhand.recipes.play_by_hand import play_by_hand, prepare
    from deskhand.recipes.step_report import ProgressListener
    from deskhand.recipes.train import create_run
    from deskhand.reporting.run_view import open_run
    from deskhand.reporting.viewer.app import serve_viewer

    if max_steps is not None and max_steps < 1:
        raise ConfigError(f"--max-steps: must be at least 1, got {max_steps}")
    if (run_dir / "run.sqlite").exists():
        settings, run = open_resumed_run(run_dir, overrides, config, profile)
    else:
        settings = load_settings(config, overrides, profile)
        title = {"title": f"Demonstrations by hand in {run_dir.resolve().name}"}
        run = create_run(settings, run_dir, f"deskhand try {task}", title, needs_model=False)

    async def main() -> None:
        play = prepare(settings, run, task, seed, max_steps)
        token, control = (secrets.token_urlsafe(24) for _ in range(2))
        page = f"/run/0/live/{play.request.episode_id}"
        with open_run(run_dir) as reading:
            serving = asyncio.create_task(serve_viewer([reading], port, token, control=control, page=page))
            playing = asyncio.create_task(play_by_hand(play, run, ProgressListener()))
            try:
                await asyncio.wait({serving, playing}, return_when=asyncio.FIRST_COMPLETED)
                if playing.done():
                    print(_verdict(playing.result(), run_dir), flush=True)
                await serving
            finally:
                for work in (playing, serving):
                    work.cancel()
                await asyncio.gather(playing, serving, return_exceptions=True)

    with run_context(run, current_command()):
        asyncio.run(main())


def _verdict(result: EpisodeResult, run_dir: Path) -> str:
    from deskhand.tasks.outcome import Scored

    if not isinstance(result.outcome, Scored):
        return f"no score ({result.outcome.cause}): {result.outcome.message}; nothing is kept"
    failed = "".join(
        f"\n  {one.clause}: read {one.read}{f', expected {one.expected}' if one.expected else ''}"
        for one in result.outcome.failed
    )
    learn = f"\nlearn from it: deskhand sft CONFIG RUN_DIR --episodes {run_dir}" if result.success else ""
    kept = f"kept in {run_dir} as {result.episode_id}; Ctrl-C ends the page"
    return f"score {result.outcome.value:.2f} in {len(result.steps)} steps{failed}\n{kept}{learn}"

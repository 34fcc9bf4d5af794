"""`deskhand dev`: commands for Deskhand's developers."""

from __future__ import annotations

from pathlib import Path

from cyclopts import App

dev_app = App(name="dev", help="Commands for Deskhand's developers.")


@dev_app.command
def build_tiny(*, work: Path = Path("runs/tiny-build"), out: Path, seed: int = 0) -> None:
    """Build the bundled policy from scratch: screens, grounding, demonstrations, imitation. Takes over an hour on two
    cores.

    Parameters
    ----------
    work
        Folder for the stages; finished stages are reused.
    out
        Checkpoint folder to write.
    seed
        Random seed.
    """
    from deskhand.recipes.tiny.build import BuildPlan, build

    build(BuildPlan(seed=seed), work, out)

"""`deskhand tasks audit`: play audit agents against tasks on real desktops."""

from __future__ import annotations

from pathlib import Path

from deskhand.cli.common import USER_ERROR
from deskhand.cli.output import Json, print_json, reserve_output


def audit(
    families: list[str] | None = None,
    /,
    *,
    variants: int = 1,
    agents: str = "",
    save_end_states: Path | None = None,
    as_json: Json = False,
) -> None:
    """Try to score without doing the task, on real desktops.

    The oracle must score 1; agents that do nothing, click at random or cheat must score 0; near misses must score less
    than 1. Exits with 2 otherwise.

    Parameters
    ----------
    families
        Families; task files in Deskhand's YAML; Python files, FILE.py or FILE.py:FAMILY (default: all basics
        families whose applications are installed).
    variants
        Training seeds per family.
    agents
        Comma-separated audit agents (default: all). The oracle always plays.
    save_end_states
        Folder for the end states, for `deskhand rescore`.
    """
    import asyncio

    from deskhand.recipes.audit_tasks import audit_tasks, select_tasks

    packages: dict[str, tuple[str, ...]] = {}
    tasks = select_tasks(families, variants, packages)
    chosen = [name for name in agents.split(",") if name]
    with reserve_output(as_json):
        results, skipped = asyncio.run(audit_tasks(tasks, chosen, save_end_states, print, packages))
    wrong = [line for result in results for line in result.violations]
    if as_json:
        print_json({"tasks": results, "skipped": skipped, "wrong": wrong})
    else:
        print("\n".join([*skipped, f"{len(results)} tasks, {len(skipped)} skipped, {len(wrong)} wrong scores", *wrong]))
    if wrong:
        raise SystemExit(USER_ERROR)

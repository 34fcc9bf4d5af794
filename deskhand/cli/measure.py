"""`deskhand tasks measure`: the success of scripted policies of graded skill, or of an evaluated one, by family."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from deskhand.cli.common import USER_ERROR
from deskhand.errors import ConfigError


def measure(
    families: list[str] | None = None,
    /,
    *,
    variants: int = 5,
    policies: str = "",
    concurrency: int = 1,
    run: Path | None = None,
    out: Annotated[Path | None, Parameter(name="--out")] = None,
) -> None:
    """Measure how often policies solve families, and store it for `deskhand tasks stats`.

    Exits with 2 if an episode has no score.

    Parameters
    ----------
    families
        Families of the bundled suites (default: all of basics).
    variants
        Training seeds per family and policy.
    policies
        Comma-separated scripted policies (default: noop, random, one_step, slips, oracle).
    concurrency
        Families that are played at the same time, on desktops of their own.
    run
        Read the evaluations of this run directory instead, and play nothing.
    out
        File with the counts (default: the one of the installed package).
    """
    import asyncio

    from deskhand.recipes.measure_difficulty import measure_families, measured_in_run
    from deskhand.tasks.difficulty import POLICY_NAMES, STORED, Measured, store_measured
    from deskhand.tasks.suites import basics, family_registry

    path = out or STORED
    selected = [each for each in policies.split(",") if each] or list(POLICY_NAMES)
    if concurrency < 1:
        raise ConfigError(f"--concurrency: {concurrency} is below 1")
    if unknown := [each for each in selected if each not in POLICY_NAMES]:
        raise ConfigError(f"--policies: unknown policy {unknown[0]!r}; policies: {', '.join(POLICY_NAMES)}")

    def store(measured: Measured) -> None:
        store_measured(measured, path)
        for family, counts in measured.items():
            shown = ", ".join(f"{policy} {count.solved}/{count.episodes}" for policy, count in counts.items())
            print(f"{family}: {shown}", flush=True)

    if run is not None:
        store(measured_in_run(run))
        return
    names = [each for given in families or basics.FAMILIES for each in family_registry.expand(given)]
    for each in names:
        family_registry.make_task(each, 0)
    unscored = asyncio.run(measure_families(names, variants, selected, store, concurrency=concurrency))
    if unscored:
        print("\n".join(unscored))
        raise SystemExit(USER_ERROR)

"""`deskhand compare`: several runs in one table."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from deskhand.cli.output import Json, print_columns, print_json
from deskhand.errors import ConfigError

COLUMNS = ("run", "steps", "episodes", "zero-variance", "replayed", "before", "after")


def compare(run_dirs: list[Path], /, *, threshold: float = 0.5, as_json: Json = False) -> None:
    """Compare runs: success before and after, training episodes, episodes to a success, and settings that differ.

    Episodes to the threshold are counted until the first evaluation during training that reached it, so the runs need
    loop.eval_every. The viewer shows runs as curves: deskhand view RUN RUN.

    Parameters
    ----------
    run_dirs
        Run directories.
    threshold
        Success of an evaluation during training, in (0, 1].
    """
    from deskhand.reporting.charts import percent
    from deskhand.reporting.comparison import compare_runs, differing_settings
    from deskhand.reporting.run_view import open_run

    if not 0.0 < threshold <= 1.0:
        raise ConfigError(f"--threshold: must be in (0, 1], got {threshold:g}")
    with ExitStack() as stack:
        runs = [stack.enter_context(open_run(folder)) for folder in run_dirs]
        found, settings = compare_runs(runs, threshold), differing_settings(runs)
    if as_json:
        print_json({"threshold": threshold, "runs": found, "settings": settings})
        return
    rows = [
        (
            each.folder,
            str(each.steps),
            str(each.episodes),
            "–" if each.zero_variance_fraction is None else percent(each.zero_variance_fraction),
            str(each.replayed),
            *(str(rate).strip() if rate.total else "–" for rate in (each.before, each.after)),
            "–" if each.to_threshold is None else str(each.to_threshold),
        )
        for each in found
    ]
    print_columns((*COLUMNS, f"episodes to {percent(threshold)}"), rows)
    if settings:
        print()
        print_columns(
            ("setting that differs", *(each.folder for each in found)),
            [(name, *("–" if value is None else str(value) for value in values)) for name, values in settings.items()],
        )

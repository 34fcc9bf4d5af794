"""`deskhand eval`: success of a policy on held-out tasks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from deskhand.cli.common import (
    Overrides,
    Profile,
    current_command,
    load_run_settings,
    open_resumed_run,
    run_context,
)
from deskhand.cli.output import Json, print_json, print_table, reserve_output
from deskhand.errors import ConfigError

if TYPE_CHECKING:
    from deskhand.rollout.eval_loop import EvalReport


def evaluate(
    run_dir: Path,
    /,
    *,
    policy: str | None = None,
    served_model_name: str | None = None,
    step: int | None = None,
    samples_per_task: int | None = None,
    config: Path | None = None,
    profile: Profile = None,
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Evaluate a policy on held-out tasks. Rerun the same command to resume.

    Parameters
    ----------
    run_dir
        Directory for the results: an existing run, or a new directory.
    policy
        A run (runs/other or runs/other@12), a checkpoint folder or hub name, "oracle", "noop", or the URL of an
        OpenAI-compatible endpoint with its key in OPENAI_API_KEY (default: the run's own checkpoint, or the config's
        model).
    served_model_name
        Model name at the endpoint.
    step
        Checkpoint step (default: the last).
    samples_per_task
        Episodes per task (default: 1); with more than one, pass@k is shown.
    config
        Config file for a new run directory. Optional when resuming; must match the original.
    """
    from deskhand.reporting.run_view import report_data
    from deskhand.reporting.terminal import evaluation_table

    if samples_per_task is not None and samples_per_task < 1:
        raise ConfigError(f"--samples-per-task: must be at least 1, got {samples_per_task}")
    options = {"policy": policy, "served_model_name": served_model_name, "samples_per_task": samples_per_task}
    with reserve_output(as_json):
        result, solved = _evaluate(run_dir, options, step, config, profile, overrides)
    if as_json:
        print_json({**report_data(result), "last_error": result.last_error, "solved_by_noop": solved})
        return
    print_table(evaluation_table(result))
    for warning in result.warnings:
        print(f"warning: {warning}")
    if result.last_error:
        print(f"last error: {result.last_error}")
    if solved:
        print(solved)


def _evaluate(
    run_dir: Path,
    options: dict[str, Any],
    step: int | None,
    config: Path | None,
    profile: str | None,
    overrides: list[str] | None,
) -> tuple[EvalReport, str]:
    """Evaluate, in a new run or one that exists; returns the report and a line on what a no-op solved."""
    import asyncio

    from deskhand.recipes import evaluate as recipe
    from deskhand.recipes.assemble import eval_concurrency, open_run_pool
    from deskhand.recipes.suite import load_suite
    from deskhand.recipes.train import create_run
    from deskhand.reporting.terminal import TerminalDisplay
    from deskhand.rollout.scripted_policies import NOOP

    policy = options["policy"]
    if (run_dir / "run.sqlite").exists():
        settings, run = open_resumed_run(run_dir, overrides, config, profile)
        stored = run.metadata.get("evaluation", {}) if policy is None and step is None else {}
        options = {key: stored.get(key) if value is None else value for key, value in options.items()}
    elif config is None and policy is None:
        raise ConfigError(f"{run_dir}: contains no run; use the directory of a run, or add --policy or --config")
    else:
        settings = load_run_settings(config, overrides, profile)
        run = create_run(
            settings, run_dir, f"deskhand eval {run_dir}", {"evaluation": options}, needs_model=policy is None
        )

    async def main() -> EvalReport:
        spec = recipe.resolve_policy(settings, run, options["policy"], step, options["served_model_name"] or "")
        async with open_run_pool(settings, run, eval_concurrency(settings), display) as pool:
            return await recipe.evaluate_policy(settings, run, pool, spec, options["samples_per_task"] or 1, display)

    with run_context(run, current_command()), TerminalDisplay() as display:
        result = asyncio.run(main())
        suite = load_suite(settings.suite, settings.desktop.backend)
        tasks = suite.tasks_of(settings.evaluation.split, settings.evaluation.num_episodes)
        solved = recipe.tasks_solved_by_noop(run, result.name, tasks) if options["policy"] == NOOP else ""
    return result, solved

"""Commands on models: evaluate, warm up, plan, export. `deskhand.cli.main` gives them their names."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from deskhand.cli.common import (
    USER_ERROR,
    Flag,
    Overrides,
    Stage,
    current_command,
    open_resumed_run,
    print_table,
    run_context,
)
from deskhand.errors import ConfigError


def evaluate(
    folder: Path,
    /,
    *,
    policy: str | None = None,
    served_name: str | None = None,
    step: int | None = None,
    repeats: int | None = None,
    config: Path | None = None,
    stage: Stage = None,
    overrides: Overrides = None,
) -> None:
    """Success on held-out tasks of any policy. The same command goes on with an evaluation that was interrupted.

    Parameters
    ----------
    folder
        Where results are kept: the folder of a run, or a new one.
    policy
        A run (runs/other or runs/other@12), a checkpoint folder or hub name, "oracle", "noop", or the address of an
        OpenAI-compatible endpoint (its key in OPENAI_API_KEY). Left out: the run's own checkpoint, or the config's model.
    served_name
        What the endpoint calls its model.
    step
        Which checkpoint; the last one if it is left out.
    repeats
        How often each task is played; with more than once pass@k is shown.
    config
        YAML file of settings for a new folder; for one with results it must say what it said then, and can be left out.
    """
    import asyncio

    from deskhand.config.load import load_config
    from deskhand.recipes import evaluate
    from deskhand.recipes import train as story
    from deskhand.recipes.assemble import open_run_pool
    from deskhand.recipes.concurrency import eval_concurrency
    from deskhand.recipes.suite import load_suite
    from deskhand.reporting.terminal import TerminalDisplay, evaluation_table
    from deskhand.rollout.eval_loop import EvalReport
    from deskhand.rollout.scripted_policies import NOOP

    if repeats is not None and repeats < 1:
        raise ConfigError(f"--repeats {repeats}: play each task at least once")
    asked = {"policy": policy, "served_name": served_name, "repeats": repeats}
    if (folder / "run.sqlite").exists():
        settings, run = open_resumed_run(folder, overrides, config, stage)
        kept = run.metadata.get("evaluation", {}) if policy is None and step is None else {}
        asked = {key: kept.get(key) if value is None else value for key, value in asked.items()}
    elif config is None and policy is None:
        raise ConfigError(f"{folder} holds no run; name the folder of one, or give --policy or --config for a new one")
    else:
        settings = load_config(config, overrides or (), os.environ, stage=stage)
        run = story.create_run(
            settings, folder, f"deskhand eval {folder}", {"evaluation": asked}, needs_model=policy is None
        )

    async def main() -> EvalReport:
        which = evaluate.resolve_policy(settings, run, asked["policy"], step, asked["served_name"] or "")
        size = eval_concurrency(settings.evaluation, settings.loop, settings.desktop)
        async with open_run_pool(settings, run, size, display) as pool:
            return await evaluate.evaluate_policy(settings, run, pool, which, asked["repeats"] or 1, display)

    with run_context(run, current_command()), TerminalDisplay() as display:
        found = asyncio.run(main())
        tasks = load_suite(settings.suite, settings.desktop.backend).held_out_tasks(settings.evaluation.num_episodes)
        unearned = evaluate.tasks_solved_by_noop(run, found.name, tasks) if asked["policy"] == NOOP else ""
    print_table(evaluation_table(found))
    if found.last_error:
        print(f"the last that has no score: {found.last_error}")
    print(unearned, end="\n" if unearned else "")


def sft(
    config: Path | None = None,
    /,
    *,
    folder: Path,
    episodes: Annotated[list[Path] | None, Parameter(negative="")] = None,
    stage: Stage = None,
    overrides: Overrides = None,
) -> None:
    """Warm a model up on demonstrations before reinforcement learning. The same command goes on with what was interrupted.

    Parameters
    ----------
    config
        YAML file of settings, those of the warm start under `sft`; for a folder that holds one it must say what it said then, and
        can be left out.
    folder
        Where demonstrations and checkpoints are kept.
    episodes
        Run folder whose successful training episodes are learned from, or a folder of deskhand record; may be given several
        times. Left out: the oracle plays.
    """
    from deskhand.config.load import load_config
    from deskhand.recipes import plan, sft
    from deskhand.recipes import train as story
    from deskhand.reporting.terminal import TerminalDisplay
    from deskhand.store.run import Run

    if (folder / "run.sqlite").exists():
        with Run.open(folder, read_only=True) as run:
            kept = run.metadata.get("sft")
        if kept is None or (episodes and [str(path.resolve()) for path in episodes] != kept):
            other = "a run of another kind" if kept is None else f"a warm start on {', '.join(kept) or 'the oracle'}"
            raise ConfigError(f"{folder} holds {other}; name a new folder")
        settings, run = open_resumed_run(folder, overrides, config, stage)
        episodes = [Path(name) for name in kept]
    elif config is None:
        raise ConfigError(
            "no config file was given; for instance: deskhand sft configs/tiny_cpu.yaml --folder runs/warm"
        )
    else:
        settings = load_config(config, overrides or (), os.environ, stage=stage)
        about = {"sft": [str(path.resolve()) for path in episodes or []]}
        run = story.create_run(settings, folder, f"deskhand sft {config}", about)
    with run_context(run, current_command()), TerminalDisplay() as display:
        plan.check_memory(settings, imitating=True)
        path = sft.run_sft_recipe(settings, run, episodes or [], display)
    print(f"checkpoint: {path}")
    print(f"to train it: deskhand train CONFIG --folder FOLDER --set model={path}")


def export(
    folder: Path,
    /,
    *,
    out: Path,
    step: int | None = None,
    adapter: Annotated[bool, Flag] = False,
    episodes: Annotated[bool, Flag] = False,
) -> None:
    """Write a checkpoint of a run as a Hugging Face folder with a model card, or the run's episodes as plain files.

    Parameters
    ----------
    folder
        The folder of a run.
    out
        The folder to write; it must be new or empty.
    step
        Which checkpoint; the last one if it is left out.
    adapter
        Write the adapters alone instead of the merged weights.
    episodes
        Write no weights, but every finished episode: JSON, its token arrays as safetensors, its screens as PNG files.
    """
    from deskhand.recipes.export_model import export_model
    from deskhand.reporting.build_report import open_run
    from deskhand.store.export import export_run

    if episodes and (adapter or step is not None):
        raise ConfigError("--episodes writes no weights; leave --adapter and --step out")
    with open_run(folder) as run:
        if episodes:
            print(f"{export_run(run, out)} episodes in {out}")
            return
        print(export_model(run, out, step=step, adapter=adapter))


def plan(
    config: Path,
    /,
    *,
    memory: float | None = None,
    gpu: str | None = None,
    screen: str | None = None,
    turns: int | None = None,
    stage: Stage = None,
    overrides: Overrides = None,
) -> None:
    """How much memory a config takes, term by term, and how fast it can be; exits with 2 when it does not fit.

    Parameters
    ----------
    config
        YAML file of settings.
    memory
        GiB of the device; that of the config or of this machine if it is left out.
    gpu
        Whose speed: H200, H100, A100, L40S, L4, 4090 or 3090.
    screen
        Screenshots of this size instead of the suite's, for instance 1280x720.
    turns
        Turns of an episode instead of the suite's.
    """
    from deskhand.config.load import load_config
    from deskhand.recipes import plan

    size = None
    if screen is not None:
        width, _, height = screen.partition("x")
        if not (width.isdigit() and height.isdigit() and int(width) and int(height)):
            raise ConfigError(f"--screen {screen}: write it as 1280x720")
        size = int(width), int(height)
    settings = load_config(config, overrides or (), os.environ, stage=stage)
    made = plan.plan(settings, memory_gib=memory, gpu=gpu, screen=size, turns=turns)
    print("\n".join(made.lines()))
    if not made.memory.fits:
        raise SystemExit(USER_ERROR)


def suite(config: Path | None = None, /, *, stage: Stage = None, overrides: Overrides = None) -> None:
    """The tasks that settings train and evaluate on, and which files of their suite are left out, each with the reason.

    Parameters
    ----------
    config
        YAML file of settings; left out for settings given by --set alone.
    """
    from deskhand.config.load import load_config
    from deskhand.recipes.suite import load_suite

    settings = load_config(config, overrides or (), os.environ, stage=stage)
    found = load_suite(settings.suite, settings.desktop.backend)
    for name in dict.fromkeys([*found.train_tasks, *found.eval_tasks]):
        task = found.make(name, 0)
        use = "held out" if name not in found.train_tasks else "trained" if name not in found.eval_tasks else "both"
        more = f"; no oracle: {task.oracle_unavailable}" if task.oracle_unavailable else ""
        print(f"{name}  {task.width}x{task.height}  at most {task.max_steps} steps  {use}{more}")
    print("\n".join(f"left out: {line}" for line in found.skipped), end="\n" if found.skipped else "")
    print(found.summary)

"""`deskhand estimate`: memory and throughput of a config, without loading weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from deskhand.cli.common import USER_ERROR, Overrides, Profile, load_run_settings, parse_size
from deskhand.cli.output import Json, print_json
from deskhand.errors import ConfigError

if TYPE_CHECKING:
    from deskhand.config.load import Config
    from deskhand.recipes.run_measurements import RunMeasurements


def estimate(
    config: Path,
    /,
    *,
    memory: float | None = None,
    gpu: str | None = None,
    screen_size: str | None = None,
    turns: int | None = None,
    reply_tokens: int | None = None,
    profile: Profile = None,
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Estimate memory and throughput of a config, or compare them with a run. Exits with 2 if it does not fit.

    Parameters
    ----------
    config
        Config file (YAML), or the name of a shipped one, such as tiny_cpu. With the directory of a training run, its
        own settings are estimated, for the episodes that it played, and compared with what it measured.
    memory
        Device memory in GiB (default: from the config or this machine).
    gpu
        GPU to estimate for: H200, H100, A100, L40S, L4, 4090 or 3090.
    screen_size
        Screenshot size, e.g. 1280x720 (default: the suite's).
    turns
        Turns per episode (default: the suite's maximum).
    reply_tokens
        Tokens per reply (default: agent.max_new_tokens).
    """
    from deskhand.recipes import plan

    settings, measured = _settings(config, overrides, profile)
    size = None if screen_size is None else parse_size("--screen-size", screen_size)
    result = plan.plan(
        settings, memory_gib=memory, gpu=gpu, screen=size, turns=turns, reply_tokens=reply_tokens, measured=measured
    )
    if as_json:
        print_json(result.data())
    else:
        print("\n".join(result.lines()))
    if not result.memory.fits:
        raise SystemExit(USER_ERROR)


def _settings(config: Path, overrides: list[str] | None, profile: str | None) -> tuple[Config, RunMeasurements | None]:
    """Return the settings of a config, or those of a run and what it measured."""
    if not (config / "run.sqlite").exists():
        return load_run_settings(config, overrides, profile), None
    from deskhand.config.load import config_of_run
    from deskhand.recipes.run_measurements import RunMeasurements
    from deskhand.reporting.run_view import open_run

    if profile is not None:
        raise ConfigError(f"--profile {profile}: {config} is a run, which has the settings of its profile")
    with open_run(config) as run:
        return config_of_run(run.metadata, config, overrides or ()), RunMeasurements.of(run.metrics())

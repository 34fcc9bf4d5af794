"""A config's plan: memory term by term and speed, before anything starts. Invariant: what does not fit is refused with numbers, and
nothing is loaded to know it.

The config says what is trained on what; the suite says how large screens are and how long episodes; `training.planner` adds it up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from deskhand.actions import dialects
from deskhand.actions.dialects.base import View
from deskhand.actions.dialects.resizing import smart_resize
from deskhand.agents.words import LONGEST
from deskhand.asking import window_of
from deskhand.config import Config
from deskhand.engines.making import sends_adapters
from deskhand.errors import ConfigError
from deskhand.models.architectures import preprocessing_of, values_of
from deskhand.recorder.images import PREPARED_BYTES
from deskhand.training.config import TrainerConfig
from deskhand.training.planner import GIB, EngineSizes, Prediction, Sent, Workload, predict, server_bytes
from deskhand.training.speed import Speed, device_of, speed_of
from deskhand.workshop import families_of, training_task

TEXT_PER_TURN = 48
"""Tokens of a turn beside screenshot and reply: the instruction or a remark, and what marks the roles."""
CHARACTERS_PER_TOKEN = 3
"""Of English and JSON, on the safe side."""
SAMPLED_TASKS = 8
"""Of each family, looked at for screen size and length."""
MOST_SAMPLED = 1200
"""Tasks that are looked at together."""
FILES = 1e9
"""Bytes a second at which a server's weights are assumed to be written and read."""
MOST = 1e6
"""GiB, turns or pixels of a side that a plan is made for."""
CHECKED_FROM = 200_000_000
"""Bytes of weights from which a run on a processor is planned before it starts; smaller ones fit anywhere."""


@dataclass(frozen=True)
class RunPlan:
    """What `deskhand plan` says."""

    memory: Prediction
    work: Workload
    speed: Speed | None
    device: str
    elsewhere: str
    """What of the run is not in the sum; empty when everything is."""
    through_files: bool = False
    """Whether weights are published to a server."""

    def lines(self) -> Iterator[str]:
        work = self.work
        yield f"screens of {work.width}x{work.height}: {work.patches} patches, {work.image_tokens} tokens each"
        yield f"episodes of {work.turns} turns, at most {work.turns_in_row} shown: rows of at most {work.row_tokens} tokens"
        if work.wanted_tokens:
            yield f"{work.turns_in_row} turns take {work.wanted_tokens} tokens, more than engine.max_tokens: see agent.overflow"
        yield f"a step: {work.step_episodes} episodes, {work.step_rows} rows, {work.step_images} screenshots"
        yield ""
        yield from self.memory.lines()
        if self.elsewhere:
            yield f"not in the sum: {self.elsewhere}"
        yield ""
        yield from self.speed.lines() if self.speed else [f"speed: not known for {self.device}; name a GPU with --gpu"]
        yield f"published at every step: {self._publication()}"

    def _publication(self) -> str:
        memory = self.memory
        if memory.published is None:
            return "nothing, engine and trainer share their weights"
        text = f"{memory.published}, {memory.sent / 1e9:.3g} GB"
        if not self.through_files:
            return f"{text}, copied within the process"
        return f"{text}, written and read as a file: {2 * memory.sent / FILES:.2g} s if files move at {FILES / 1e9:g} GB/s"


def plan(
    config: Config, *, memory_gib: float | None = None, gpu: str | None = None, screen: tuple[int, int] | None = None,
    turns: int | None = None,
) -> RunPlan:  # fmt: skip
    """Plan a config, on the device of this machine or on one with `memory_gib` that is called `gpu`.

    `screen` and `turns` replace what the suite's tasks have. Raises `ConfigError` for an unknown GPU or model, and for numbers that
    no machine could mean.
    """
    for name, value in (("--memory", memory_gib), ("--turns", turns), *zip(("--screen", "--screen"), screen or (), strict=False)):
        if value is not None and not 0 < value < MOST:
            raise ConfigError(f"{name} {value:g}: give a number above 0 and below {MOST:g}")
    values = values_of(config.model)
    cuda = config.device.startswith("cuda")
    gib = memory_gib or config.memory_gib
    device = device_of(config.device, gpu)
    work = workload(config, values, screen, turns)
    settings, available = config.engine, gib * GIB if gib else device.memory
    engine, server, elsewhere = None, 0.0, ""
    if settings.kind == "hf":
        engine = EngineSizes(
            settings.max_batch,
            settings.max_tokens,
            settings.prefill_tokens,
            settings.parked_tokens,
            settings.image_tokens,
            max(config.loop.desktops, config.evaluation.desktops or 0),
            settings.share_weights,
        )
    elif settings.kind == "vllm" and settings.url is None and cuda:
        server = settings.memory_share * (available or 0.0)
    else:
        elsewhere = f"the server of engine.kind {settings.kind}"
    published = None if settings.kind == "hf" else sent_to_server(config, values)
    memory = _predicted(config, values, config.trainer, engine, work, available, server, published)
    if server and server < (least := server_bytes(values, memory, config.dtype, settings.max_tokens)):
        raise ConfigError(
            f"engine.memory_share {settings.memory_share:g}: the server gets {server / GIB:.1f} GiB, its weights and one request "
            f"of engine.max_tokens {settings.max_tokens} take {least / GIB:.1f} GiB; raise it, or lower engine.max_tokens"
        )
    speed = speed_of(values, config, memory, work, device) if device.flops(config.dtype) else None
    return RunPlan(memory, work, speed, device.name, elsewhere, settings.kind != "hf")


def sent_to_server(config: Config, values: dict[str, Any]) -> Sent | None:
    """What a server is sent. One at an address is taken for one that was not started for adapters."""
    adapter, engine = config.policy.adapter, config.engine
    if engine.kind == "remote":
        return None
    if adapter is None or engine.kind != "vllm" or engine.url is not None:
        return "whole weights"
    return "adapters" if sends_adapters(adapter, values["model_type"]) else "whole weights"


def warm_start(config: Config) -> Prediction:
    """The memory of `deskhand sft`: no engine beside the trainer, and updates on `sft.batch_episodes`. Raises as `plan` does."""
    values = values_of(config.model)
    available = config.memory_gib * GIB if config.memory_gib else device_of(config.device).memory
    work = workload(config, values)
    count, each = config.sft.batch_episodes, work.step_rows // work.step_episodes
    pictures = work.step_images // work.step_episodes
    work = replace(work, step_episodes=count, step_rows=count * each, step_images=count * pictures)
    return _predicted(config, values, config.trainer.supervised, None, work, available)


def _predicted(
    config: Config, values: dict[str, Any], trainer: TrainerConfig, engine: EngineSizes | None, work: Workload,
    available: float | None, server: float = 0.0, published: Sent | None = None,
) -> Prediction:  # fmt: skip
    """Raises `ConfigError` for a model that cannot be."""
    cuda = config.device.startswith("cuda")
    try:
        return predict(
            values, config.dtype, config.policy, trainer, engine, work,
            cuda=cuda, available=available, server=server, published=published,
        )  # fmt: skip
    except (RuntimeError, ArithmeticError, ValueError, TypeError, KeyError) as error:
        why = f"{type(error).__name__}: {(str(error) or 'no message').splitlines()[0][:200]}"
        raise ConfigError(f"{config.model}: no such model can be built or held with these settings ({why})") from error


def workload(config: Config, values: dict[str, Any], screen: tuple[int, int] | None = None, turns: int | None = None) -> Workload:
    """What episodes of the config's families look like: the largest screen, the longest episode."""
    make = training_task(config)
    tasks = [make(number) for number in range(min(MOST_SAMPLED, SAMPLED_TASKS * len(families_of(config))))]
    width, height = screen or (max(task.width for task in tasks), max(task.height for task in tasks))
    turns = turns or max(task.max_steps for task in tasks)
    patch, merge = values["vision_config"]["patch_size"], values["vision_config"]["spatial_merge_size"]
    wide, high = smart_resize(width, height, patch * merge, *preprocessing_of(config.model))
    patches, pictures = wide * high // patch**2, config.agent.screen == "pixels"
    image_tokens = patches // merge**2 if pictures else 0
    shown, rows = _rows(config, turns)
    prompt = dialects.get(config.agent.dialect).prompt(View.of_screen(width, height)) if config.agent.style == "full" else ""
    words = 0 if pictures else LONGEST // CHARACTERS_PER_TOKEN
    turn_tokens = image_tokens + words + TEXT_PER_TURN + config.agent.max_tokens
    wanted = len(prompt) // CHARACTERS_PER_TOKEN + shown * turn_tokens
    row_tokens = min(config.engine.max_tokens, wanted)
    episodes = config.loop.groups_per_step * config.loop.group_size
    return Workload(
        width, height, patches, image_tokens, turns, shown, row_tokens, config.agent.max_tokens,
        episodes, episodes * rows, episodes * turns * pictures, PREPARED_BYTES, wanted if wanted > row_tokens else 0,
    )  # fmt: skip


def _rows(config: Config, turns: int) -> tuple[int, int]:
    """(most turns in a row, rows of an episode) under the config's window."""
    window = window_of(config.agent)
    firsts = [window.first(count) for count in range(1, turns + 1)]
    chains: dict[int, int] = {}
    for count, first in enumerate(firsts, 1):
        chains[first] = count - first
    return max(chains.values()), len(chains)


def refuse_if_too_large(config: Config, *, imitating: bool = False) -> None:
    """Raise `ConfigError` with numbers when the device cannot hold the run, or the warm start; nothing is loaded to know it."""
    if not (config.memory_gib or config.device.startswith("cuda") or _weight_bytes(config.model) > CHECKED_FROM):
        return
    memory = warm_start(config) if imitating else plan(config).memory
    if memory.fits or memory.available is None:
        return
    largest = sorted(memory.terms, key=lambda term: -term.bytes)[:3]
    parts = ", ".join(f"{term.name} {term.bytes / GIB:.1f}" for term in largest)
    mend = ", engine.max_batch or loop.group_size, or take adapters; deskhand plan shows the whole sum"
    if imitating:
        mend = " or sft.batch_episodes, set policy.recompute_activations, or take adapters"
    raise ConfigError(
        f"this run needs {memory.total() / GIB:.1f} GiB, {config.device} has {memory.available / GIB:.1f} GiB (largest: {parts}); "
        f"lower policy.batch_tokens{mend}"
    )


def _weight_bytes(source: str) -> int:
    folder = Path(source).expanduser()
    return (
        sum(file.stat().st_size for file in folder.glob("*.safetensors"))
        if folder.is_dir()
        else 0
        if source == "tiny"
        else CHECKED_FROM + 1
    )

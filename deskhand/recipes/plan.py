"""A config's plan: memory term by term and speed, before anything starts. Invariant: what does not fit is refused with numbers, and
nothing is loaded to know it.

The config says what is trained on what; the suite says how large screens are and how long episodes; `training.planner` adds it up.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from deskhand.actions import formats
from deskhand.actions.formats.base import ScreenView
from deskhand.actions.formats.smart_resize import smart_resize
from deskhand.agents.from_config import window_of
from deskhand.agents.history import HistoryPolicy
from deskhand.agents.text_observation import MAX_CHARS
from deskhand.config.load import Config
from deskhand.config.schema import EngineConfig
from deskhand.config.trainer import LoraConfig
from deskhand.errors import ConfigError
from deskhand.models.architectures import preprocessing_of, values_of
from deskhand.recipes.assemble import train_task_factory
from deskhand.recipes.engine_factory import sends_lora_only
from deskhand.recipes.suite import load_suite
from deskhand.recorder.images import PREPARED_BYTES
from deskhand.trainer.memory_estimate import (
    GIB,
    MemoryEstimate,
    WeightSyncMode,
    Workload,
    estimate_memory,
    server_bytes,
)
from deskhand.trainer.throughput_estimate import ThroughputEstimate, device_of, estimate_throughput

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

    memory: MemoryEstimate
    work: Workload
    speed: ThroughputEstimate | None
    device: str
    excluded: str
    """What of the run is not in the sum; empty when everything is."""
    through_files: bool = False
    """Whether weights are published to a server."""

    def lines(self) -> Iterator[str]:
        work = self.work
        yield f"screens of {work.width}x{work.height}: {work.patches} patches, {work.image_tokens} tokens each"
        yield f"episodes of {work.turns} turns, at most {work.turns_in_row} shown: rows of at most {work.row_tokens} tokens"
        if work.wanted_tokens:
            yield f"{work.turns_in_row} turns take {work.wanted_tokens} tokens, more than engine.max_model_len: see agent.on_overflow"
        yield f"a step: {work.step_episodes} episodes, {work.step_rows} rows, {work.step_images} screenshots"
        yield ""
        yield from self.memory.lines()
        if self.excluded:
            yield f"not in the sum: {self.excluded}"
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
        return (
            f"{text}, written and read as a file: {2 * memory.sent / FILES:.2g} s if files move at {FILES / 1e9:g} GB/s"
        )


def plan(
    config: Config, *, memory_gib: float | None = None, gpu: str | None = None, screen: tuple[int, int] | None = None,
    turns: int | None = None,
) -> RunPlan:  # fmt: skip
    """Plan a config, on the device of this machine or on one with `memory_gib` that is called `gpu`.

    `screen` and `turns` replace what the suite's tasks have. Raises `ConfigError` for an unknown GPU or model, and for numbers that
    no machine could mean.
    """
    for name, value in (
        ("--memory", memory_gib),
        ("--turns", turns),
        *zip(("--screen", "--screen"), screen or (), strict=False),
    ):
        if value is not None and not 0 < value < MOST:
            raise ConfigError(f"{name} {value:g}: give a number above 0 and below {MOST:g}")
    values, engine = values_of(config.model), config.engine
    gib = memory_gib or config.device_memory_gib
    device = device_of(config.device, gpu)
    work = workload(config, values, screen, turns)
    available = gib * GIB if gib else device.memory
    local, server, excluded = None, 0.0, ""
    cuda = config.device.startswith("cuda")
    if engine.backend == "hf":
        local = engine
    elif engine.backend == "vllm" and engine.base_url is None and cuda:
        server = engine.gpu_memory_utilization * (available or 0.0)
    else:
        excluded = f"the server of engine.backend {engine.backend}"
    with _buildable(config.model):
        memory = estimate_memory(
            values, config.dtype, config.policy, config.trainer, local, work,
            requests=max(config.loop.max_concurrent_episodes, config.evaluation.max_concurrent_episodes or 0), cuda=cuda, available=available, server=server,
            published=weight_sync_mode(engine, config.policy.lora, values["model_type"]),
        )  # fmt: skip
    if server and server < (least := server_bytes(values, memory, config.dtype, engine.max_model_len)):
        raise ConfigError(
            f"engine.gpu_memory_utilization {engine.gpu_memory_utilization:g}: the server gets {server / GIB:.1f} GiB, its weights and one request of "
            f"engine.max_model_len {engine.max_model_len} take {least / GIB:.1f} GiB; raise it, or lower engine.max_model_len"
        )
    requests = min(engine.max_num_seqs, config.loop.max_concurrent_episodes)
    known = device.flops(config.dtype)
    speed = (
        estimate_throughput(values, config.policy, config.trainer, config.dtype, requests, memory, work, device)
        if known
        else None
    )
    return RunPlan(memory, work, speed, device.name, excluded, engine.backend != "hf")


def weight_sync_mode(engine: EngineConfig, lora: LoraConfig | None, family: str) -> WeightSyncMode | None:
    """What a server is sent; None for an engine that needs nothing. One at an address is taken for one that was not started for
    adapters."""
    if engine.backend in ("hf", "remote"):
        return None
    if lora is None or engine.backend != "vllm" or engine.base_url is not None:
        return "whole weights"
    return "adapters" if sends_lora_only(lora, family) else "whole weights"


def estimate_sft_memory(config: Config) -> MemoryEstimate:
    """The memory of `deskhand sft`: no engine beside the trainer, and updates on `sft.episodes_per_batch`. Raises as `plan` does."""
    values = values_of(config.model)
    available = config.device_memory_gib * GIB if config.device_memory_gib else device_of(config.device).memory
    work = workload(config, values)
    count, each = config.sft.episodes_per_batch, work.step_rows // work.step_episodes
    pictures = work.step_images // work.step_episodes
    work = replace(work, step_episodes=count, step_rows=count * each, step_images=count * pictures)
    cuda = config.device.startswith("cuda")
    with _buildable(config.model):
        trainer = config.trainer.supervised
        return estimate_memory(values, config.dtype, config.policy, trainer, None, work, cuda=cuda, available=available)


@contextmanager
def _buildable(model: str) -> Iterator[None]:
    """Raises `ConfigError` for a model that cannot be."""
    try:
        yield
    except (RuntimeError, ArithmeticError, ValueError, TypeError, KeyError) as error:
        why = f"{type(error).__name__}: {(str(error) or 'no message').splitlines()[0][:200]}"
        raise ConfigError(f"{model}: no such model can be built or held with these settings ({why})") from error


def workload(
    config: Config, values: dict[str, Any], screen: tuple[int, int] | None = None, turns: int | None = None
) -> Workload:
    """What episodes of the config's families look like: the largest screen, the longest episode."""
    suite, agent = load_suite(config.suite, config.desktop.backend), config.agent
    make = train_task_factory(suite, config.seed)
    tasks = [make(number) for number in range(min(MOST_SAMPLED, SAMPLED_TASKS * len(suite.train_tasks)))]
    width, height = screen or (max(task.width for task in tasks), max(task.height for task in tasks))
    turns = turns or max(task.max_steps for task in tasks)
    patch, merge = values["vision_config"]["patch_size"], values["vision_config"]["spatial_merge_size"]
    wide, high = smart_resize(width, height, patch * merge, *preprocessing_of(config.model))
    patches, pictures = wide * high // patch**2, agent.observation == "pixels"
    image_tokens = patches // merge**2 if pictures else 0
    shown, rows = _rows(window_of(agent), turns)
    prompt = (
        formats.get(agent.action_format).prompt(ScreenView.of_screen(width, height))
        if agent.prompt_style == "full"
        else ""
    )
    words = 0 if pictures else MAX_CHARS // CHARACTERS_PER_TOKEN
    turn_tokens = image_tokens + words + TEXT_PER_TURN + agent.max_new_tokens
    wanted = len(prompt) // CHARACTERS_PER_TOKEN + shown * turn_tokens
    row_tokens = min(config.engine.max_model_len, wanted)
    episodes = config.loop.groups_per_step * config.loop.group_size
    return Workload(
        width, height, patches, image_tokens, turns, shown, row_tokens, agent.max_new_tokens,
        episodes, episodes * rows, episodes * turns * pictures, PREPARED_BYTES, wanted if wanted > row_tokens else 0,
    )  # fmt: skip


def _rows(window: HistoryPolicy, turns: int) -> tuple[int, int]:
    """(most turns in a row, rows of an episode)."""
    firsts = [window.start_index(count) for count in range(1, turns + 1)]
    chains: dict[int, int] = {}
    for count, first in enumerate(firsts, 1):
        chains[first] = count - first
    return max(chains.values()), len(chains)


def check_memory(config: Config, *, imitating: bool = False) -> None:
    """Raise `ConfigError` with numbers when the device cannot hold the run, or the warm start; nothing is loaded to know it."""
    if not (config.device_memory_gib or config.device.startswith("cuda") or _weight_bytes(config.model) > CHECKED_FROM):
        return
    memory = estimate_sft_memory(config) if imitating else plan(config).memory
    if memory.fits or memory.available is None:
        return
    largest = sorted(memory.terms, key=lambda term: -term.bytes)[:3]
    parts = ", ".join(f"{term.name} {term.bytes / GIB:.1f}" for term in largest)
    mend = ", engine.max_num_seqs or loop.group_size, or take adapters; deskhand plan shows the whole sum"
    if imitating:
        mend = " or sft.episodes_per_batch, set policy.gradient_checkpointing, or take adapters"
    raise ConfigError(
        f"this run needs {memory.total() / GIB:.1f} GiB, {config.device} has {memory.available / GIB:.1f} GiB (largest: {parts}); "
        f"lower policy.max_tokens_per_mb{mend}"
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

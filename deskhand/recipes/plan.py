"""Estimate memory and throughput of a config without loading weights. Entry points: `plan` and `check_memory`.

The suite provides screen sizes and episode lengths; `trainer.memory_estimate` adds up the terms.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from deskhand.actions import formats
from deskhand.actions.formats.base import ScreenView
from deskhand.actions.formats.smart_resize import ModelImageSize
from deskhand.agents.history import HistoryWindow, build_history
from deskhand.agents.text_observation import MAX_CHARS
from deskhand.config.load import Config
from deskhand.config.schema import EngineConfig
from deskhand.config.trainer import LoraConfig
from deskhand.errors import ConfigError
from deskhand.models.architectures import count_parameters, preprocessing_of, values_of
from deskhand.models.load import check_device
from deskhand.recipes.assemble import judging_desktops, train_concurrency, train_task_factory
from deskhand.recipes.engine_factory import sends_lora_only
from deskhand.recipes.run_measurements import Comparison, RunMeasurements
from deskhand.recipes.suite import load_suite
from deskhand.recorder.images import PREPARED_BYTES
from deskhand.store.frames import REMEMBERED_BYTES
from deskhand.tasks.judge import judge_seconds
from deskhand.trainer.memory_estimate import (
    BYTES,
    GIB,
    MemoryEstimate,
    MemoryLocation,
    MemoryTerm,
    WeightSyncMode,
    Workload,
    count,
    estimate_memory,
    server_bytes,
)
from deskhand.trainer.rollout_estimate import RolloutEstimate, estimate_rollout
from deskhand.trainer.throughput_estimate import ThroughputEstimate, device_of, estimate_throughput

TEXT_PER_TURN = 48
"""Tokens of a turn in addition to screenshot and reply: instruction or feedback, and role markers."""
CHARACTERS_PER_TOKEN = 3
"""Conservative ratio for English and JSON."""
SAMPLED_TASKS = 8
"""Tasks per family that are inspected for screen size and length."""
MAX_SAMPLED_TASKS = 1200
"""Maximum tasks inspected."""
FILE_BYTES_PER_S = 1e9
"""Assumed rate at which weight files are written and read."""
MAX_OPTION = 1e6
"""Maximum value of numeric options."""
PROGRAM_BYTES = 500 << 20
"""Resident memory of `deskhand train` before its first step, without weights and caches: Python, torch, transformers,
endpoints, desktops. Read from /proc/PID/status, which said 548 MiB with weights and caches."""
CPU_SLACK = 0.10
"""Allowance for memory of a process on a CPU that the C library keeps although it is free, as a fraction of all
tensors. Peaks of whole runs are compared with the sum in docs/training.md."""
MIN_CHECKED_BYTES = 200_000_000
"""Weights from which a run on a CPU is checked; smaller ones fit anywhere."""


@dataclass(frozen=True)
class RunPlan:
    """Output of `deskhand estimate`."""

    memory: MemoryEstimate
    work: Workload
    speed: ThroughputEstimate | None
    device: str
    excluded: str
    """Parts of the run that are not in the sum, or empty."""
    through_files: bool = False
    """Whether weights are pushed to a server through files."""
    rollout: RolloutEstimate | None = None
    """None for desktops of other machines, whose times are unknown, and where `speed` is."""
    compared: tuple[Comparison, ...] = ()
    """The estimate against a run; memory is that of the longest episodes, rates are those of the run's own."""

    def lines(self) -> Iterator[str]:
        work = self.work
        yield f"screenshots of {work.width}x{work.height}: {work.patches} patches, {work.image_tokens} tokens each"
        yield (
            f"episodes of {work.turns} turns, at most {work.turns_in_row} in a prompt: sequences of at most "
            f"{work.row_tokens} tokens"
        )
        if work.wanted_tokens:
            yield (
                f"{work.turns_in_row} turns need {work.wanted_tokens} tokens, more than engine.max_model_len "
                "(see agent.on_overflow)"
            )
        yield f"step: {work.step_episodes} episodes, {work.step_rows} sequences, {work.step_images} screenshots"
        yield ""
        yield from self.memory.lines()
        if self.excluded:
            yield f"not included: {self.excluded}"
        yield ""
        yield from (
            self.speed.lines() if self.speed else [f"throughput: unknown for {self.device}; select a GPU with --gpu"]
        )
        if self.rollout is not None:
            yield from self.rollout.lines()
        yield f"weight sync per step: {self._weight_sync()}"
        if self.compared:
            width = max(len(f"{each.name}, {each.unit}") for each in self.compared)
            yield ""
            yield f"{'':{width}} {'estimated':>10} {'measured':>10} {'ratio':>7}"
            yield from (each.line(width) for each in self.compared)

    def data(self) -> dict[str, Any]:
        """Return the same as JSON types: memory in bytes, by term."""
        memory = self.memory
        terms = [{"name": term.name, "bytes": term.bytes, "min_bytes": term.min_bytes, "location": term.place,
                  "how": term.how} for term in memory.terms]  # fmt: skip
        rollout = self.rollout and {**asdict(self.rollout), "episodes_per_minute": self.rollout.per_minute}
        compared = [{**asdict(each), "ratio": each.ratio} for each in self.compared]
        return {
            "device": self.device,
            "workload": asdict(self.work),
            "memory": {
                "terms": terms,
                "total_bytes": memory.total(),
                "min_total_bytes": memory.least(),
                "host_bytes": memory.total("host"),
                "available_bytes": memory.available,
                "fits": memory.fits,
                "not_included": self.excluded or None,
            },
            "throughput": asdict(self.speed) if self.speed else None,
            "rollout": rollout,
            "weight_sync": {"mode": memory.published, "bytes": memory.sent, "through_files": self.through_files},
            "compared": compared,
        }

    def _weight_sync(self) -> str:
        memory = self.memory
        if memory.published is None:
            return "none, engine and trainer share the weights"
        text = f"{memory.published}, {memory.sent / 1e9:.3g} GB"
        if not self.through_files:
            return f"{text}, copied in the process"
        seconds = _sync_s(memory)
        return f"{text}, written to a file and read: {seconds:.2g} s at {FILE_BYTES_PER_S / 1e9:g} GB/s"


def _sync_s(memory: MemoryEstimate) -> float:
    """Return the seconds to write the weights of a step to a file and to read them."""
    return 2 * memory.sent / FILE_BYTES_PER_S


def plan(
    config: Config, *, memory_gib: float | None = None, gpu: str | None = None, screen: tuple[int, int] | None = None,
    turns: int | None = None, reply_tokens: int | None = None, measured: RunMeasurements | None = None,
) -> RunPlan:  # fmt: skip
    """Estimate a config on this machine's device, or on `gpu` with `memory_gib`. `screen` and `turns` replace the
    values of the suite's tasks, `reply_tokens` that of the agent; the means of a `measured` run replace them all in the
    rates, which are then compared with it. Raises `ConfigError` if the GPU or model is unknown, or a number is out of
    range."""
    if reply_tokens is not None:
        if not 0 < reply_tokens < MAX_OPTION:
            raise ConfigError(f"--reply-tokens: must be above 0 and below {MAX_OPTION:g}, got {reply_tokens:g}")
        config = config.model_copy(update={"agent": config.agent.model_copy(update={"max_new_tokens": reply_tokens})})
    sides = (("--screen-size", side) for side in screen or ())
    for name, value in (("--memory", memory_gib), ("--turns", turns), *sides):
        if value is not None and not 0 < value < MAX_OPTION:
            raise ConfigError(f"{name}: must be above 0 and below {MAX_OPTION:g}, got {value:g}")
    values, engine = values_of(config.model), config.engine
    gib = memory_gib or config.device_memory_gib
    device = device_of(config.device, gpu, config.trainer.torch_threads)
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
            requests=max(config.loop.max_concurrent_episodes, config.evaluation.max_concurrent_episodes or 0),
            cuda=cuda, available=available, server=server,
            published=weight_sync_mode(engine, config.policy.lora, values["model_type"]),
        )  # fmt: skip
    if server and server < (least := server_bytes(values, memory, config.dtype, engine.max_model_len)):
        raise ConfigError(
            f"engine.gpu_memory_utilization: {engine.gpu_memory_utilization:g} gives the server "
            f"{server / GIB:.1f} GiB, but weights and one request of engine.max_model_len {engine.max_model_len} "
            f"need {least / GIB:.1f} GiB; increase it"
        )
    memory = _with_program(_with_teacher(memory, config), cuda)
    requests = min(engine.max_num_seqs, config.loop.max_concurrent_episodes)
    speed, rollout, through_files = None, None, engine.backend != "hf"
    typical = measured.workload(work, config.trainer) if measured else work
    if device.flops(config.dtype):
        speed = estimate_throughput(
            values, config.policy, config.trainer, config.dtype, requests, memory, typical, device,
            in_process=engine.backend == "hf",
        )  # fmt: skip
        if config.desktop.backend == "local":
            size = train_concurrency(config)
            rollout = estimate_rollout(
                typical, speed, size, num_judging=judging_desktops(config.desktop, size), own_engine=not excluded,
                on_cpu=gpu is None and config.device == "cpu", threads=config.trainer.torch_threads or 1,
                sync_s=_sync_s(memory) if through_files else 0.0,
            )  # fmt: skip
    compared = tuple(measured.compare(memory, typical, speed, rollout)) if measured else ()
    return RunPlan(memory, work, speed, device.name, excluded, through_files, rollout, compared)


def _with_teacher(memory: MemoryEstimate, config: Config) -> MemoryEstimate:
    """Return the estimate with the weights of a teacher that is loaded in addition to the policy."""
    teacher = config.trainer.distillation
    if teacher is None or teacher.is_served:
        return memory
    with _buildable(teacher.teacher):
        number, size = count_parameters(values_of(teacher.teacher)), BYTES[config.dtype]
    term = MemoryTerm("teacher", number * size, f"{count(number)} x {size} B, scores only")
    return replace(memory, terms=(*memory.terms, term))


def _with_program(memory: MemoryEstimate, cuda: bool) -> MemoryEstimate:
    """Return the estimate with the memory of the program itself, which on a CPU is that of the device."""
    place: MemoryLocation = "host" if cuda else "device"
    how = "pixels of which the next ones store changes"
    more = [
        MemoryTerm("program", PROGRAM_BYTES, "Python and libraries", place=place),
        MemoryTerm("recent screenshots", REMEMBERED_BYTES, how, 0.0, place),
    ]
    if not cuda:
        how = f"an allowance of {100 * CPU_SLACK:.0f} % of the tensors, for freed memory that the C library keeps"
        more.append(MemoryTerm("allocator", CPU_SLACK * memory.total(), how, 0.0))
    return replace(memory, terms=(*memory.terms, *more))


def weight_sync_mode(engine: EngineConfig, lora: LoraConfig | None, family: str) -> WeightSyncMode | None:
    """Return what is pushed to a server, or None for an engine without one. A running server is assumed to lack LoRA
    support."""
    if engine.backend in ("hf", "openai"):
        return None
    if lora is None or engine.backend != "vllm" or engine.base_url is not None:
        return "whole weights"
    return "adapters" if sends_lora_only(lora, family) else "whole weights"


def estimate_sft_memory(config: Config) -> MemoryEstimate:
    """Estimate the memory of `deskhand sft`: no engine, and updates on `sft.episodes_per_batch`. Raises like `plan`."""
    values = values_of(config.model)
    available = config.device_memory_gib * GIB if config.device_memory_gib else device_of(config.device).memory
    work = workload(config, values)
    count, each = config.sft.episodes_per_batch, work.step_rows // work.step_episodes
    images = work.step_images // work.step_episodes
    work = replace(work, step_episodes=count, step_rows=count * each, step_images=count * images)
    cuda = config.device.startswith("cuda")
    with _buildable(config.model):
        trainer = config.trainer.supervised
        memory = estimate_memory(
            values, config.dtype, config.policy, trainer, None, work, cuda=cuda, available=available
        )
    return _with_program(memory, cuda)


@contextmanager
def _buildable(model: str) -> Iterator[None]:
    """Raise `ConfigError` for a model that cannot be built."""
    try:
        yield
    except (RuntimeError, ArithmeticError, ValueError, TypeError, KeyError) as error:
        why = f"{type(error).__name__}: {(str(error) or 'no message').splitlines()[0][:200]}"
        raise ConfigError(f"{model}: cannot build this model with these settings ({why})") from error


def workload(
    config: Config, values: dict[str, Any], screen: tuple[int, int] | None = None, turns: int | None = None
) -> Workload:
    """Return the workload of the config's families: largest screen and longest episode."""
    suite, agent = load_suite(config.suite, config.desktop.backend), config.agent
    make = train_task_factory(suite, config.seed)
    tasks = [make(number) for number in range(min(MAX_SAMPLED_TASKS, SAMPLED_TASKS * len(suite.train_tasks)))]
    width, height = screen or (max(task.width for task in tasks), max(task.height for task in tasks))
    turns = turns or max(task.max_steps for task in tasks)
    patch, merge = values["vision_config"]["patch_size"], values["vision_config"]["spatial_merge_size"]
    resize = ModelImageSize(patch * merge, *preprocessing_of(config.model))
    wide, high = resize(width, height, agent.max_pixels)
    patches, has_images = wide * high // patch**2, agent.observation == "screenshot"
    image_tokens = patches // merge**2 if has_images else 0
    shown, rows = _sequences(build_history(agent), turns)
    prompt = (
        formats.get(agent.action_format).prompt(ScreenView.of_screen(width, height))
        if agent.prompt_style == "full"
        else ""
    )
    text_tokens = 0 if has_images else MAX_CHARS // CHARACTERS_PER_TOKEN
    turn_tokens = image_tokens + text_tokens + TEXT_PER_TURN + agent.max_new_tokens
    wanted = len(prompt) // CHARACTERS_PER_TOKEN + shown * turn_tokens
    row_tokens = min(config.engine.max_model_len, wanted)
    episodes = config.loop.groups_per_step * config.loop.group_size
    return Workload(
        width, height, patches, image_tokens, turns, shown, row_tokens, agent.max_new_tokens,
        episodes, episodes * rows, episodes * turns * has_images, PREPARED_BYTES, config.loop.max_staleness + 1,
        wanted if wanted > row_tokens else 0, statistics.fmean(map(judge_seconds, tasks)),
    )  # fmt: skip


def _sequences(history: HistoryWindow, turns: int) -> tuple[int, int]:
    """(maximum turns of a sequence, sequences of an episode)."""
    firsts = [history.start_index(turn) for turn in range(1, turns + 1)]
    chains: dict[int, int] = {}
    for turn, first in enumerate(firsts, 1):
        chains[first] = turn - first
    return max(chains.values()), len(chains)


def check_memory(config: Config, *, is_sft: bool = False) -> None:
    """Raise `ConfigError` if this machine lacks the device, or with numbers if the run, or the warm start, does not fit
    it. Of a hub model only its descriptions are downloaded."""
    check_device(config.device)
    if not (
        config.device_memory_gib or config.device.startswith("cuda") or _weight_bytes(config.model) > MIN_CHECKED_BYTES
    ):
        return
    memory = estimate_sft_memory(config) if is_sft else plan(config).memory
    if memory.fits or memory.available is None:
        return
    largest = sorted(memory.terms, key=lambda term: -term.bytes)[:3]
    parts = ", ".join(f"{term.name} {term.bytes / GIB:.1f}" for term in largest)
    hint = ", engine.max_num_seqs or loop.group_size, or use LoRA (see deskhand estimate)"
    if is_sft:
        hint = " or sft.episodes_per_batch, set policy.gradient_checkpointing, or use LoRA"
    raise ConfigError(
        f"this run needs {memory.total() / GIB:.1f} GiB, but {config.device} has {memory.available / GIB:.1f} GiB "
        f"(largest: {parts}); reduce policy.max_tokens_per_mb{hint}"
    )


def _weight_bytes(source: str) -> int:
    folder = Path(source).expanduser()
    if folder.is_dir():
        return sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    return 0 if source == "tiny" else MIN_CHECKED_BYTES + 1

"""What a run measured, to be compared with its estimate. Used by `recipes.plan`; start with `RunMeasurements.of`.

Steps write their metrics to metrics.jsonl (`recipes.step_report`, `recipes.step_times`). Their means describe the
episodes that were really played, and the seconds and bytes that they really took.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from deskhand.config.trainer import TrainerConfig
from deskhand.errors import ConfigError
from deskhand.recipes.health_rules import LENGTH, NUM_EPISODES, NUM_REPLIES
from deskhand.trainer.memory_estimate import MIB, MemoryEstimate, MemoryLocation, Workload
from deskhand.trainer.rollout_estimate import ACTION_S, SETUP_S, RolloutEstimate
from deskhand.trainer.throughput_estimate import ThroughputEstimate

NOT_TENSORS = ("allocator", "CUDA", "server")
"""Terms of a GPU's memory that are outside of this process's tensors, of which the run records the peak."""


@dataclass(frozen=True)
class Comparison:
    """One figure of the estimate and of the run, in `unit`."""

    name: str
    unit: str
    estimated: float
    measured: float

    @property
    def ratio(self) -> float | None:
        """Measured by estimated; None if the estimate is zero."""
        return self.measured / self.estimated if self.estimated else None

    def line(self, width: int) -> str:
        ratio = "-" if self.ratio is None else f"{self.ratio:.2f}"
        unit = f"{self.name}, {self.unit}" if self.unit else self.name
        return f"{unit:{width}} {self.estimated:10.4g} {self.measured:10.4g} {ratio:>7}"


@dataclass(frozen=True)
class RunMeasurements:
    """Means per step of a run's steps after the first, in which caches are filled; of the first if it is the only one.

    `peaks`: the highest of `memory/peak_mib_total` and `memory/device_peak_mib` of all steps, in MiB.
    """

    steps: Sequence[Mapping[str, Any]]
    """Metrics of the steps that are averaged."""
    seconds: float
    """From one step to the next."""
    played: float
    """Episodes that ended per step."""
    trained: float
    """Episodes that were trained per step."""
    peaks: Mapping[str, float]

    @staticmethod
    def of(metrics: Sequence[Mapping[str, Any]]) -> RunMeasurements:
        """Return the means of the steps of a run. Raises `ConfigError` if there are none."""
        if not metrics:
            raise ConfigError("this run has no finished training step yet; estimate its config, or wait for a step")
        names = ("memory/peak_mib_total", "memory/device_peak_mib")
        peaks = {name: max(step[name] for step in metrics if name in step) for name in names if name in metrics[-1]}
        # The first step of a process, from which the time elapsed counts, also starts the desktops.
        steps = [step for before, step in pairwise(metrics) if _follows(step, before)]
        steps = steps or [metrics[-1]]
        number = len(steps)
        return RunMeasurements(
            steps,
            sum(step["time/step"] for step in steps) / number,
            sum(step[NUM_EPISODES] for step in steps) / number,
            _trained(metrics, steps),
            peaks,
        )

    def mean(self, name: str, *, per: str = "") -> float | None:
        """Return the mean of a metric over the steps, weighted by the metric `per`; None if no step has it."""
        found = [(step[name], step.get(per, 0.0) if per else 1.0) for step in self.steps if step.get(name) is not None]
        total = sum(weight for _, weight in found)
        return sum(value * weight for value, weight in found) / total if total else None

    def workload(self, work: Workload, trainer: TrainerConfig) -> Workload:
        """Return the workload with the mean episodes of the run instead of the longest; counts become fractions."""
        turns = (self.mean(NUM_REPLIES) or 0.0) / max(1.0, self.played)
        rows = work.step_rows / work.step_episodes * self.trained
        tokens = (self.mean("train/computed_tokens") or 0.0) / trainer.ppo_epochs
        if not turns or not rows or not tokens:
            return work
        encoded = self.mean("engine/images_encoded")
        images = self.trained * turns if encoded is None else encoded * self.trained / max(1.0, self.played)
        return replace(
            work,
            turns=turns,
            turns_in_row=min(work.turns_in_row, turns * self.trained / rows),
            row_tokens=tokens / rows,
            reply_tokens=self.mean(LENGTH, per=NUM_REPLIES) or 0.0,
            step_episodes=self.trained,
            step_rows=rows,
            step_images=images if work.step_images else 0,
            played_episodes=self.played,
        )

    def compare(
        self, memory: MemoryEstimate, work: Workload, speed: ThroughputEstimate | None, rollout: RolloutEstimate | None
    ) -> Iterator[Comparison]:
        """Yield what both the estimate and the run state. `work`: the workload of `speed` and `rollout`."""
        if rollout is not None:
            yield Comparison("episodes per minute", "", rollout.per_minute, 60 * self.played / self.seconds)
            yield Comparison("step", "s", rollout.step_s, self.seconds)
            yield from self._episode(work, rollout)
        if speed is not None:
            rate = self.mean("perf/trainer_tokens_per_s", per="time/train_step") or 0.0
            yield Comparison("trained", "tokens/s", speed.train_tokens_per_s, rate)
            yield Comparison("training", "s per step", speed.step_s, self.mean("time/train_step") or 0.0)
            yield from self._engine(work, speed, rollout)
        yield from self._memory(memory)

    def _episode(self, work: Workload, rollout: RolloutEstimate) -> Iterator[Comparison]:
        times = {name: self.mean(f"time/episode_{name}", per=NUM_EPISODES) for name in ("setup", "solve", "model")}
        setup_s, solve_s, model_s = (times[name] or 0.0 for name in ("setup", "solve", "model"))
        if not solve_s:
            return
        waited_s = rollout.slowdown * rollout.model_s * rollout.requests / rollout.episodes
        yield Comparison("desktop", "s per episode", SETUP_S + work.turns * ACTION_S, setup_s + solve_s - model_s)
        yield Comparison("model", "s per episode", waited_s, model_s)
        yield Comparison("judge", "s per episode", work.judge_s, self.mean("time/episode_judge", per=NUM_EPISODES) or 0)

    def _engine(
        self, work: Workload, speed: ThroughputEstimate, rollout: RolloutEstimate | None
    ) -> Iterator[Comparison]:
        decoding_s = self.mean("time/engine_decode")
        if decoding_s is None or rollout is None:
            return
        replies_s = work.num_played * work.turns * work.reply_tokens * speed.token_s / rollout.mean_batch
        parts = {"vision": speed.vision_s, "prefill": speed.prefill_s, "decode": replies_s}
        for name, seconds in parts.items():
            measured = self.mean(f"time/engine_{name}") or 0.0
            yield Comparison(f"engine {name}", "s per step", rollout.slowdown * seconds, measured)
        sampled = work.num_played * work.turns * work.reply_tokens
        estimated = sampled / (rollout.slowdown * replies_s) if replies_s else 0.0
        counted = self.mean("engine/decoded_tokens") or 0.0
        yield Comparison("sampled while decoding", "tokens/s", estimated, counted / max(decoding_s, 1e-9))

    def _memory(self, memory: MemoryEstimate) -> Iterator[Comparison]:
        place: MemoryLocation = "device"  # on a CPU, that of the process
        if (tensors := self.peaks.get("memory/device_peak_mib")) is not None:
            outside = sum(term.bytes for term in memory.terms if term.place == "device" and term.name in NOT_TENSORS)
            yield Comparison("peak of the GPU's tensors", "MiB", (memory.total() - outside) / MIB, tensors)
            place = "host"
        if (peak := self.peaks.get("memory/peak_mib_total")) is not None:
            yield Comparison("peak of the process", "MiB", memory.total(place) / MIB, peak)


def _follows(step: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    """Return whether both steps are of one process, in which the time elapsed grows."""
    return step.get("time/elapsed", 0.0) > before.get("time/elapsed", 0.0)


def _trained(metrics: Sequence[Mapping[str, Any]], steps: Sequence[Mapping[str, Any]]) -> float:
    """Return the mean number of episodes that a step trains; those that ended, for a run too short to say.

    The count of trained episodes is of the last commit, so that a step's own episodes are in that of a later step.
    """
    counts = [step.get("episodes/trained", 0) for step in metrics]
    if counts[-1] > counts[0]:
        return (counts[-1] - counts[0]) / (len(counts) - 1)
    return sum(step[NUM_EPISODES] for step in steps) / len(steps)

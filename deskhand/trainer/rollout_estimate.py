"""Estimate of the episodes per minute of a run. Used by `recipes.plan`; start with `estimate_rollout`.

A training step takes time of the engine (`trainer.throughput_estimate`), of the trainer, of the desktops and of the
processor. The two extremes are printed: all of them one after the other, and all at once, when the slowest decides.
The constants were measured with the demo: small applications on local desktops, two cores of an AMD EPYC.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from deskhand.trainer.memory_estimate import Workload
from deskhand.trainer.throughput_estimate import ThroughputEstimate

SETUP_S = 0.45
"""Time in which a task is set up, on a desktop that was started in advance."""
ACTION_S = 0.1
"""Time of an action and of its settled screen."""
EPISODE_CPU_S, TURN_CPU_S = 0.15, 0.03
"""CPU time of an episode besides model and trainer, and of each of its turns: the desktop's processes, agent, recorder,
storage."""


@dataclass(frozen=True)
class RolloutEstimate:
    """Seconds of a training step by part. `requests`: episodes with an agent at work."""

    episodes: int
    requests: int
    mean_batch: float
    """Requests that decode at the same time, on average."""
    engine_s: float
    """Prefill, screenshots and replies; 0 for an engine on another machine."""
    trainer_s: float
    desktops_s: float
    """Set-up, actions and judge, with all desktops in use."""
    model_s: float
    """Waiting for the model, with `requests` concurrent episodes."""
    processor_s: float
    """CPU time divided by the cores."""

    @property
    def slowest(self) -> tuple[str, float]:
        """Name and seconds of the part that decides when all run at once."""
        parts = {
            "engine and trainer": self.engine_s + self.trainer_s,
            "desktops": self.desktops_s + self.model_s,
            "processor": self.processor_s,
        }
        name = max(parts, key=lambda part: parts[part])
        return name, parts[name]

    @property
    def per_minute(self) -> tuple[float, float]:
        """Episodes per minute with one part after the other, and with all at once."""
        serial_s = max(self.engine_s + self.trainer_s + self.desktops_s, self.processor_s)
        return 60 * self.episodes / serial_s, 60 * self.episodes / self.slowest[1]

    def lines(self) -> Iterator[str]:
        least, most = self.per_minute
        yield (
            f"step: engine {self.engine_s:.3g} s (batches of {self.mean_batch:.2g}), trainer {self.trainer_s:.3g} s, "
            f"desktops {self.desktops_s:.3g} s, processor {self.processor_s:.3g} s"
        )
        yield (
            f"episodes per minute: {least:.3g} with one after the other, {most:.3g} with all at once, limited by the "
            f"{self.slowest[0]}"
        )


def estimate_rollout(
    work: Workload, speed: ThroughputEstimate, requests: int, *, num_judging: int, on_cpu: bool, own_engine: bool,
    threads: int, cores: int | None = None,
) -> RolloutEstimate:  # fmt: skip
    """Estimate a step of episodes that all have `work.turns` turns and replies of `work.reply_tokens`.

    Args:
        num_judging: Further episodes that may be judged meanwhile.
        on_cpu: Engine and trainer run on `threads` of the `cores` on which the desktops run.
        own_engine: The engine shares the trainer's device. Another one answers in the time that this device would take.
    """
    cores = cores or len(os.sched_getaffinity(0))
    episodes = work.step_episodes
    played_s = SETUP_S + work.turns * ACTION_S
    desktops_s = max(played_s / requests, (played_s + work.judge_s) / (requests + num_judging)) * episodes

    prompt_s = (speed.prefill_s + speed.vision_s) / episodes
    reply_s = work.turns * work.reply_tokens * speed.token_s
    mean_batch = max(1.0, requests * reply_s / (reply_s + prompt_s + played_s))
    engine_s = episodes * (prompt_s + reply_s / mean_batch)

    cpu_s = episodes * (EPISODE_CPU_S + work.turns * TURN_CPU_S)
    if on_cpu:
        cpu_s += ((engine_s if own_engine else 0.0) + speed.step_s) * min(threads, cores)
    return RolloutEstimate(
        episodes, requests, mean_batch, engine_s if own_engine else 0.0, speed.step_s, desktops_s,
        episodes * (prompt_s + reply_s) / requests, cpu_s / cores,
    )  # fmt: skip

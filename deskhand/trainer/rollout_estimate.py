"""Estimate of the episodes per minute of a run. Used by `recipes.plan`; start with `estimate_rollout`.

A training step takes time of the engine (`trainer.throughput_estimate`), of the trainer, of the desktops and of the
processor. Episodes are played while the trainer computes, so engine and trainer slow each other down: `shared_step_s`.
The constants were measured with the demo: small applications on local desktops, two cores of an AMD EPYC.
"""

from __future__ import annotations

import math
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


def shared_step_s(waiting_s: float, rollout_s: float, trainer_s: float) -> float:
    """Return the seconds of a step in which rollouts and trainer share a device, or a processor.

    Alone, the rollouts of a step need `rollout_s` of the device and wait `waiting_s` for something else, such as
    desktops; the trainer needs `trainer_s`. In a step of S seconds the trainer computes for the fraction
    u = trainer_s / S. The rollouts get the rest of the device, so their share of it lasts rollout_s / (1 - u), the mean
    response under processor sharing (Kleinrock, Queueing Systems II, 1976). Therefore

        S = waiting_s + rollout_s / (1 - trainer_s / S),

    whose larger root is returned. It is at least rollout_s + trainer_s, since both cannot exceed the device; at least
    what the rollouts take alone; and at most the sum of all three, which is the time of one after the other.
    """
    total_s = waiting_s + rollout_s + trainer_s
    # Rounding may make the discriminant negative where it is zero: trainer_s = waiting_s and rollout_s = 0.
    return (total_s + math.sqrt(max(0.0, total_s**2 - 4 * waiting_s * trainer_s))) / 2


@dataclass(frozen=True)
class RolloutEstimate:
    """Seconds of a training step by part. `requests`: episodes with an agent at work."""

    episodes: float
    """Episodes that are played during a step."""
    requests: int
    mean_batch: float
    """Requests that decode at the same time, on average."""
    engine_s: float
    """Prefill, screenshots and replies, without a trainer on the device; 0 for an engine on another machine."""
    trainer_s: float
    """Training, and the pushing of weights."""
    desktops_s: float
    """Set-up, actions and judge, with all desktops in use."""
    model_s: float
    """Waiting for the model, with `requests` concurrent episodes and without a trainer on the device."""
    processor_s: float
    """CPU time divided by the cores."""
    step_s: float
    """From one step to the next."""
    slowdown: float
    """Factor by which the trainer slows down the rollouts' use of the device that they share; 1 if they do not."""

    @property
    def slowest(self) -> tuple[str, float]:
        """Name and seconds of the part that takes most of the step by itself."""
        parts = {
            "engine": self.engine_s,
            "trainer": self.trainer_s,
            "desktops": self.desktops_s + self.model_s,
            "processor": self.processor_s,
        }
        name = max(parts, key=lambda part: parts[part])
        return name, parts[name]

    @property
    def per_minute(self) -> float:
        return 60 * self.episodes / self.step_s

    def lines(self) -> Iterator[str]:
        yield (
            f"step: engine {self.engine_s:.3g} s (batches of {self.mean_batch:.2g}), trainer {self.trainer_s:.3g} s, "
            f"desktops {self.desktops_s:.3g} s, processor {self.processor_s:.3g} s"
        )
        yield f"interference: the trainer makes sampling {self.slowdown:.3g} times as long"
        yield (
            f"episodes per minute: {self.per_minute:.3g}, {self.step_s:.3g} s per step; the {self.slowest[0]} takes "
            "the most"
        )


def estimate_rollout(
    work: Workload, speed: ThroughputEstimate, requests: int, *, num_judging: int, on_cpu: bool, own_engine: bool,
    threads: int, cores: int | None = None, sync_s: float = 0.0,
) -> RolloutEstimate:  # fmt: skip
    """Estimate a step of episodes that all have `work.turns` turns and replies of `work.reply_tokens`.

    Args:
        num_judging: Further episodes that may be judged meanwhile.
        on_cpu: Engine and trainer run on `threads` of the `cores` on which the desktops run.
        own_engine: The engine shares the trainer's device. Another one answers in the time that this device would take.
        sync_s: Seconds in which the weights of a step are sent to the engine.
    """
    cores = cores or len(os.sched_getaffinity(0))
    episodes = work.num_played
    played_s = SETUP_S + work.turns * ACTION_S
    desktops_s = max(played_s / requests, (played_s + work.judge_s) / (requests + num_judging)) * episodes

    prompt_s = (speed.prefill_s + speed.vision_s) / episodes
    reply_s = work.turns * work.reply_tokens * speed.token_s
    mean_batch = max(1.0, requests * reply_s / (reply_s + prompt_s + played_s))
    engine_s = episodes * (prompt_s + reply_s / mean_batch) if own_engine else 0.0
    model_s = episodes * (prompt_s + reply_s) / requests

    trainer_s, busy = speed.step_s + sync_s, min(threads, cores)
    rollout_cpu_s = episodes * (EPISODE_CPU_S + work.turns * TURN_CPU_S) + (engine_s * busy if on_cpu else 0.0)
    processor_s = (rollout_cpu_s + (trainer_s * busy if on_cpu else 0.0)) / cores
    alone_s = max(desktops_s + model_s, engine_s)
    if work.open_steps == 1:
        step_s, slowdown = max(alone_s + trainer_s, processor_s), 1.0
    else:
        if on_cpu:
            shared_s, taken_s = rollout_cpu_s / cores, trainer_s * busy / cores
        else:
            shared_s, taken_s = max(engine_s, model_s), trainer_s if own_engine else 0.0
        together_s = shared_step_s(max(0.0, alone_s - shared_s), shared_s, taken_s)
        step_s = max(together_s, trainer_s, processor_s)
        slowdown = 1 / (1 - taken_s / step_s) if taken_s < step_s else math.inf
    return RolloutEstimate(
        episodes, requests, mean_batch, engine_s, trainer_s, desktops_s, model_s, processor_s, step_s, slowdown
    )

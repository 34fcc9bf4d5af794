"""Conversion of finished groups of episodes into training samples.

Used by `recipes.training_loop` and `integrations.areal`; start with `groups_to_samples`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Protocol

import numpy as np

from deskhand.algorithms.base import Algorithm
from deskhand.algorithms.gigpo import step_advantages
from deskhand.algorithms.reinforce_plus_plus import normalize_over_batch
from deskhand.errors import ConfigError
from deskhand.recorder.graph import CallGraph, Sequence
from deskhand.rollout.episode_record import EpisodeResult
from deskhand.tasks.outcome import Scored
from deskhand.trainer.batch import TrainingSample


class ScoredGroup(Protocol):
    """What the samples of a group are made of; `rollout.groups.Group` is one."""

    @property
    def id(self) -> str: ...

    @property
    def scored(self) -> list[EpisodeResult]: ...


def group_to_samples(
    group: ScoredGroup, algorithm: Algorithm, fresh: Callable[[EpisodeResult], bool] = lambda result: True
) -> list[TrainingSample]:
    """Return the training samples of a group's episodes with their advantages, one per sequence.

    `fresh`: whether to train on an episode. Advantages are computed from all scored episodes of the group; they are 0
    if the algorithm uses a critic, which computes them later. Raises `ConfigError` for invalid advantages.
    """
    # In the order of the members: the order in which they ended depends on the machine.
    scored = sorted((one for one in group.scored if isinstance(one.outcome, Scored)), key=lambda result: result.member)
    rewards = [result.reward if result.reward is not None else float("nan") for result in scored]
    advantages = np.zeros(len(rewards)) if algorithm.uses_critic else _advantages(algorithm, np.array(rewards))
    by_reply = _reply_advantages(algorithm, scored, advantages)
    return [
        TrainingSample(
            sequence,
            float(advantage),
            result.episode_id,
            1.0,
            reward,
            _replies(result.graph, sequence),
            result.graph,
            group.id,
            len(scored),
            tuple(by_reply[name] for name in sequence.call_ids) if by_reply else (),
        )
        for result, advantage, reward, by_reply in zip(scored, advantages, rewards, by_reply, strict=True)
        if fresh(result)
        for sequence in result.graph.sequences()
    ]


def _reply_advantages(
    algorithm: Algorithm, scored: list[EpisodeResult], advantages: np.ndarray
) -> list[dict[str, float]]:
    """Return the advantages of each episode's trained calls by id; empty if the algorithm has none of replies."""
    if algorithm.step_discount is None:
        return [{} for _ in scored]
    states = [_anchor_states(result) for result in scored]
    rewards = [result.reward or 0.0 for result in scored]
    found = step_advantages(rewards, [list(each.values()) for each in states], algorithm.step_discount)
    return [
        dict(zip(visited, (float(own) + algorithm.step_weight * steps).tolist(), strict=True))
        for visited, own, steps in zip(states, advantages, found, strict=True)
    ]


def _anchor_states(result: EpisodeResult) -> dict[str, str]:
    """Return the screen before each trained call by id, in order: that of the agent's step, else the last image of the
    prompt; a call without either has a state of its own."""
    frames = {step.call_id: step.frame_sha256 for step in result.steps}
    found: dict[str, str] = {}
    for name in (name for name in result.graph.ids if name in result.graph.ids_to_train):
        spans = result.graph.get(name).spans
        found[name] = frames.get(name) or (spans[-1].sha256 if spans else f"{result.episode_id}/{name}")
    return found


def groups_to_samples(
    groups: Iterable[ScoredGroup], algorithm: Algorithm, fresh: Callable[[EpisodeResult], bool] = lambda result: True
) -> list[TrainingSample]:
    """Return the samples of a step, with advantages over the batch where the algorithm normalizes them so."""
    samples = [sample for group in groups for sample in group_to_samples(group, algorithm, fresh)]
    if not algorithm.normalize_batch:
        return samples
    advantages = {sample.episode_id: sample.advantage for sample in samples}
    values = normalize_over_batch(np.array([*advantages.values()]), is_centered=algorithm.is_centered)
    normalized = dict(zip(advantages, values, strict=True))
    return [replace(sample, advantage=float(normalized[sample.episode_id])) for sample in samples]


def _advantages(algorithm: Algorithm, rewards: np.ndarray) -> np.ndarray:
    if not len(rewards):
        return rewards
    found = np.asarray(algorithm(rewards), dtype=np.float64)
    if found.shape != rewards.shape or not np.isfinite(found).all():
        raise ConfigError(
            f"trainer.algorithm: {algorithm.name} must return {len(rewards)} finite advantages, one per reward, "
            f"got {found.tolist()}"
        )
    return found


def _replies(graph: CallGraph, sequence: Sequence) -> tuple[tuple[int, int], ...]:
    """Return (index of the call in the episode, number of sampled tokens) for each reply of a sequence."""
    indices = {call.id: index for index, call in enumerate(graph.calls)}
    return tuple((indices[name], len(graph.get(name).completion.token_ids)) for name in sequence.call_ids)

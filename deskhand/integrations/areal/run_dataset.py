"""Episodes of a run directory as AReaL trajectories: the same rows, advantages and checks as in a worker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from deskhand.algorithms.base import get_algorithm
from deskhand.integrations.areal.trajectory import TrajectoryLimits, check_trajectory
from deskhand.models.load import load_processors
from deskhand.recorder.images import ImageCache
from deskhand.recorder.renderer import ChatRenderer
from deskhand.rollout.groups import Group
from deskhand.rollout.run_writer import load_result
from deskhand.store.run import TRAIN, Run


def load_trajectories(
    run: Run, model: str, *, algorithm: Literal["grpo", "dr_grpo", "gspo"] = "grpo", max_tokens: int | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the trajectory of each group of `run` with a signal, in order. `model`: the checkpoint that sampled.

    Raises `RecordError` if AReaL would train a group incorrectly, `InfrastructureError` if a screenshot is missing.
    """
    from deskhand.integrations.areal.tensors import samples_to_tensors
    from deskhand.recipes.samples import group_to_samples

    tokenizer, processor = load_processors(model)
    renderer = ChatRenderer(tokenizer, source=model, history="preserve")
    images = ImageCache(processor, fetch=run.frames.pixels)
    advantages = get_algorithm(algorithm)
    limits = TrajectoryLimits(renderer.image_id, images.merge_size, renderer.banned_ids, max_tokens)
    for row in run.groups():
        rows = run.episodes(TRAIN, group_id=row.id)
        scored = [load_result(run, found.id) for found in rows if found.reward is not None]
        group = Group(row.id, row.number, None, len(scored), 0, scored=scored)  # pyright: ignore[reportArgumentType]
        if group.has_signal:
            samples = [one for one in group_to_samples(group, advantages) if any(one.sequence.loss_mask)]
            by_episode = advantages.loss_norm == "episode"
            tensors = samples_to_tensors(samples, images, limits.image_id, normalize_by_episode=by_episode)
            check_trajectory(tensors, limits)
            yield tensors

"""Training sequences of a run in the order of its groups: `recorded_rows`. Used by `export` and `formats`.

Invariant: token ids, masks, log-probs and advantages are those that the trainer uses; nothing is tokenized.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from deskhand.algorithms.base import Algorithm
from deskhand.rollout.episode_record import EpisodeResult
from deskhand.rollout.groups import Group
from deskhand.rollout.run_writer import load_result
from deskhand.store.run import DEMONSTRATIONS, TRAIN, EpisodeRow, Run
from deskhand.tasks.outcome import Scored

if TYPE_CHECKING:
    from deskhand.recorder.graph import Sequence

Form = Literal["rl", "sft"]


@dataclass(frozen=True)
class RecordedRow:
    """One sequence of an episode. `group_id` is the episode's own id for a demonstration."""

    sequence: Sequence
    result: EpisodeResult
    group_id: str
    advantage: float | None
    """None if it is not of one group alone: it comes from a critic, or is normalized over the batch."""

    @property
    def images(self) -> list[str]:
        """SHA-256 of the images, in the order of their placeholders; an image may occur twice."""
        return [span.sha256 for span in self.sequence.spans]

    @property
    def first_sampled(self) -> int:
        """Index of the first sampled token."""
        return self.sequence.loss_mask.index(True)


def recorded_rows(run: Run, form: Form, algorithm: Algorithm) -> Iterator[RecordedRow]:
    """Yield the rows of scored training episodes; errored ones have no reward and are left out.

    "sft": of successful episodes alone, with demonstrations. Raises `ConfigError` if what is stored is damaged.
    """
    from deskhand.recipes.samples import group_to_samples

    has_advantage = not (algorithm.uses_critic or algorithm.normalize_batch)
    for row in run.groups():
        scored = _scored(run, run.episodes(TRAIN, group_id=row.id))
        group = Group(row.id, row.number, None, len(scored), 0, scored=scored)  # pyright: ignore[reportArgumentType]
        results = {result.episode_id: result for result in scored}
        for sample in group_to_samples(group, algorithm):
            result = results[sample.episode_id]
            if any(sample.sequence.loss_mask) and (form == "rl" or result.success):
                yield RecordedRow(sample.sequence, result, row.id, sample.advantage if has_advantage else None)
    if form == "sft":
        for result in _scored(run, run.episodes(DEMONSTRATIONS)):
            for sequence in result.graph.sequences() if result.success else ():
                if any(sequence.loss_mask):
                    yield RecordedRow(sequence, result, result.episode_id, None)


def _scored(run: Run, rows: list[EpisodeRow]) -> list[EpisodeResult]:
    found = [load_result(run, row.id) for row in rows if row.reward is not None and run.has_record(row.id)]
    return [result for result in found if isinstance(result.outcome, Scored)]

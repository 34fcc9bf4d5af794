"""What a step did, in figures. Invariant: means over tokens are plain means over the trained tokens of the step, whatever their
episode's weight.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from deskhand.algorithms.kl import kl_estimate
from deskhand.algorithms.objective import ClippedLoss
from deskhand.trainer.batch import TrainBatch
from deskhand.trainer.policy import TokenScores


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """One step."""

    step: int
    loss: float
    """Objective, mean over the step's updates, with the penalty and without the value loss."""
    grad_norm: float
    """Largest norm before clipping."""
    clip_fraction: float
    ratio_mean: float
    ratio_max: float
    behaviour_weight_mean: float
    dropped_fraction: float
    """Share of tokens whose behaviour weight exceeded the cap."""
    kl: float
    """Estimate of KL(behaviour || weights when the token was first scored in this step), nats per token."""
    mismatch_kl: float | None
    """The same over the tokens that the weights of this very version sampled, scored before any update of the step: how far engine
    and trainer disagree. None without any."""
    mismatch_kl_text: float | None
    """Of these, over those that no picture precedes."""
    mismatch_kl_images: float | None
    """Of these, over those that a picture precedes: engines compute pictures' features in ways of their own, so this one can be
    large while the other is not."""
    logprob_gap_max: float
    """Largest |log-prob - behaviour log-prob| of a token that was scored before any update of the step."""
    entropy: float
    """Nats, mean over the tokens of the first pass."""
    tokens: int
    """Sampled tokens trained in one pass."""
    rows: int
    images: int
    """Unique screenshots of the rows that were trained."""
    episodes: int
    """Episodes in the mean, those with zero advantage included."""
    reference_kl: float | None = None
    """k3 estimate of the divergence from the reference, nats per token; None without a penalty."""
    value_loss: float | None = None
    """Mean over the step's updates; None without a critic."""
    explained_variance: float | None = None
    """Share of the returns' variance that the critic's values explained before the step; None without a critic."""
    rejected: dict[str, int] = field(default_factory=dict)
    """Episodes refused, by cause."""
    updates: int = 0
    """Optimizer updates made; an update whose gradient is zero or not finite is not made."""
    learning_rate: float = 0.0
    seconds: float = 0.0


class StepMetricsAccumulator:
    """Sums over the tokens of a step. `version`: that of the weights before it."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.loss = self.value_loss = 0.0
        self.sums: defaultdict[str, float] = defaultdict(float)
        self.tokens = 0
        self.ratio_max = self.gap_max = 0.0

    def add(
        self, batch: TrainBatch, scores: TokenScores, result: ClippedLoss, value: Tensor, *, first: bool, updated: bool
    ) -> None:
        """A micro-batch with its loss. `first`: whether it is of the first pass; `updated`: whether the weights are no longer those
        before the step."""
        new_W, old_W = scores.logprobs_W.detach(), batch.behaviour_logprobs_W
        self.loss += value.item()
        self.sums["scored"] += len(new_W)
        self.sums["clipped"] += result.clipped.sum().item()
        self.sums["ratio"] += result.ratios.detach().sum().item()
        self.sums["weight"] += result.importance_weights.sum().item()
        self.sums["dropped"] += (result.importance_weights == 0).sum().item()
        self.ratio_max = max(self.ratio_max, result.ratios.max().item())
        if first:
            kl_W = kl_estimate(new_W, old_W)
            self.tokens += len(new_W)
            self.sums["kl"] += kl_W.sum().item()
            self.sums["entropy"] += scores.entropies_W.sum().item()
            if not updated:
                self._compare(batch, kl_W)
                self.gap_max = max(self.gap_max, (new_W - old_W).abs().max().item())

    def _compare(self, batch: TrainBatch, kl_W: Tensor) -> None:
        own_W = batch.versions_W == self.version
        for context, chosen_W in (("text", own_W & ~batch.after_image_W), ("images", own_W & batch.after_image_W)):
            self.sums[f"{context}_tokens"] += int(chosen_W.sum())
            self.sums[f"{context}_kl"] += kl_W[chosen_W].sum().item()

    def add_reference(self, divergences_W: Tensor) -> None:
        """Divergences from the reference of the tokens that were just added."""
        self.sums["reference"] += divergences_W.detach().sum().item()

    def means(self) -> dict[str, float]:
        """The entries of `StepMetrics` that are always there."""
        scored, tokens = max(1, self.sums["scored"]), max(1, self.tokens)
        return {
            "clip_fraction": self.sums["clipped"] / scored,
            "ratio_mean": self.sums["ratio"] / scored,
            "ratio_max": self.ratio_max,
            "behaviour_weight_mean": self.sums["weight"] / scored,
            "dropped_fraction": self.sums["dropped"] / scored,
            "kl": self.sums["kl"] / tokens,
            "logprob_gap_max": self.gap_max,
            "entropy": self.sums["entropy"] / tokens,
        }

    def mismatch_kl(self, *contexts: Literal["text", "images"]) -> float | None:
        """How far engine and trainer disagree over the tokens of these contexts; None without any."""
        tokens = sum(self.sums[f"{context}_tokens"] for context in contexts)
        return sum(self.sums[f"{context}_kl"] for context in contexts) / tokens if tokens else None

    @property
    def reference_kl(self) -> float | None:
        return self.sums["reference"] / max(1, self.sums["scored"]) if "reference" in self.sums else None

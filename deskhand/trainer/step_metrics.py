"""Metrics of a training step. Means over tokens are not weighted by episode.

Replayed tokens count in `num_tokens`, `entropy` and the loss. All other means and maxima are over the tokens of the
step's own episodes, whose staleness the alerts judge; those of replayed tokens have names with `replay_`.

Used by `trainer.trainer`: `StepMetricsAccumulator` adds up micro-batches, `StepMetrics` is the result.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from deskhand.algorithms.objective import ClippedLoss, kl_estimate
from deskhand.trainer.batch import TrainBatch
from deskhand.trainer.policy import TokenScores


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """Metrics of one step; `metrics()` returns them under their public names."""

    step: int
    loss: float
    """Objective with the KL penalty and without the value loss, mean over the updates."""
    grad_norm: float
    """Largest norm before clipping."""
    clip_frac: float
    ratio_mean: float
    ratio_max: float
    importance_weight_mean: float
    masked_frac: float
    """Fraction of tokens whose importance weight exceeded the cap."""
    approx_kl: float
    """Estimate of KL(behavior || weights when the token was first scored in this step), nats per token."""
    engine_kl: float | None
    """The same over replies that only the current version sampled, scored before any update: the disagreement of engine
    and trainer. None without such replies."""
    engine_kl_tokens: int
    """Tokens of `engine_kl`."""
    engine_kl_text: float | None
    """`engine_kl` over tokens without a preceding image."""
    engine_kl_images: float | None
    """`engine_kl` over tokens after an image. Engines compute image features differently, so it can be larger."""
    logprob_diff_max: float
    """Largest |log-prob - behavior log-prob| of a token scored before any update."""
    entropy: float
    """Nats, mean over the tokens of the first epoch."""
    num_tokens: int
    """Sampled tokens trained per epoch."""
    num_sequences: int
    num_images: int
    """Unique screenshots of the trained sequences."""
    num_episodes: int
    """Episodes in the mean, including those with zero advantage."""
    ref_kl: float | None = None
    """k3 estimate of the divergence from the reference, nats per token; None without a penalty."""
    teacher_kl: float | None = None
    """Mean of behavior log-prob minus the teacher's, which estimates KL(behavior || teacher), nats per token; None
    without a teacher."""
    value_loss: float | None = None
    """Mean over the updates; None without a critic."""
    explained_variance: float | None = None
    """Fraction of the variance of returns explained by the critic before the step; None without a critic."""
    replay_tokens: int = 0
    """Replayed tokens of `num_tokens`."""
    replay_approx_kl: float | None = None
    """`approx_kl` of the replayed tokens; None without any."""
    replay_masked_frac: float | None = None
    replay_importance_weight_mean: float | None = None
    rejected: dict[str, int] = field(default_factory=dict)
    """Rejected episodes by cause."""
    num_updates: int = 0
    """Optimizer updates, without those skipped because the gradient was zero or not finite."""
    lr: float = 0.0
    computed_tokens: int = 0
    """Tokens of the sequences in all forward and backward passes, prompts included."""
    device_peak_mib: float | None = None
    """Peak of the GPU memory of this process during the step; None on a CPU."""
    seconds: float = 0.0
    phases: dict[str, float] = field(default_factory=dict)
    """Seconds by phase: check, score (before the first update), forward_backward, optimizer."""

    def metrics(self) -> dict[str, Any]:
        """Return the metrics by flat name, such as `train/loss`."""
        other = ("step", "rejected", "seconds", "phases", "device_peak_mib")
        own = {f"train/{name}": value for name, value in asdict(self).items() if name not in other}
        causes = {f"train/rejected/{cause}": count for cause, count in self.rejected.items()}
        times = {"time/train_step": self.seconds, **{f"time/train_{name}": each for name, each in self.phases.items()}}
        rate = self.computed_tokens / max(self.seconds, 1e-9)
        more = {"perf/trainer_tokens_per_s": rate, "memory/device_peak_mib": self.device_peak_mib}
        return {**own, "train/num_rejected": sum(self.rejected.values()), **causes, **times, **more}


class StepMetricsAccumulator:
    """Sums over the tokens of a step. `version`: version of the weights before the step."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.loss = self.value_loss = 0.0
        self.sums: defaultdict[str, float] = defaultdict(float)
        self.num_tokens = self.computed_tokens = 0
        self.ratio_max = self.diff_max = 0.0

    def add(
        self,
        batch: TrainBatch,
        scores: TokenScores,
        result: ClippedLoss,
        value: Tensor,
        *,
        first: bool,
        updated: bool,
        replayed_W: Tensor | None = None,
    ) -> None:
        """Add a micro-batch and its loss.

        `first`: whether it belongs to the first epoch; `updated`: whether the weights have changed in this step;
        `replayed_W`: which tokens are replayed, bool; None for none.
        """
        new_W, old_W = scores.logprobs_W.detach(), batch.behavior_logprobs_W
        kl_W, ratios_W, weights_W = kl_estimate(new_W, old_W), result.ratios.detach(), result.importance_weights
        step_W = torch.ones_like(new_W, dtype=torch.bool) if replayed_W is None else ~replayed_W
        self.loss += value.item()
        self.computed_tokens += sum(batch.inputs.lengths)
        for prefix, chosen_W in (("", step_W), ("replay_", ~step_W)):
            self.sums[f"{prefix}scored"] += int(chosen_W.sum())
            self.sums[f"{prefix}weight"] += weights_W[chosen_W].sum().item()
            self.sums[f"{prefix}masked"] += (weights_W[chosen_W] == 0).sum().item()
            if first:
                self.sums[f"{prefix}tokens"] += int(chosen_W.sum())
                self.sums[f"{prefix}kl"] += kl_W[chosen_W].sum().item()
        self.sums["clipped"] += result.clipped[step_W].sum().item()
        self.sums["ratio"] += ratios_W[step_W].sum().item()
        if step_W.any():
            self.ratio_max = max(self.ratio_max, ratios_W[step_W].max().item())
        if first:
            self.num_tokens += len(new_W)
            self.sums["entropy"] += scores.entropies_W.sum().item()
            if not updated and step_W.any():
                self.diff_max = max(self.diff_max, (new_W - old_W)[step_W].abs().max().item())
                own_W, after_W = (batch.versions_W == self.version) & batch.same_version_W, batch.after_image_W
                for context, chosen_W in (("text", own_W & ~after_W), ("images", own_W & after_W)):
                    self.sums[f"{context}_tokens"] += int(chosen_W.sum())
                    self.sums[f"{context}_kl"] += kl_W[chosen_W].sum().item()

    def add_reference(self, divergences_W: Tensor) -> None:
        """Add the divergences from the reference of the tokens just added."""
        self.sums["reference"] += divergences_W.detach().sum().item()

    def means(self) -> dict[str, Any]:
        """Return the fields of `StepMetrics` that are means over tokens."""
        scored, tokens = max(1, self.sums["scored"]), max(1, self.sums["tokens"])
        replayed = self.sums["replay_scored"]
        return {
            "clip_frac": self.sums["clipped"] / scored,
            "ratio_mean": self.sums["ratio"] / scored,
            "ratio_max": self.ratio_max,
            "importance_weight_mean": self.sums["weight"] / scored,
            "masked_frac": self.sums["masked"] / scored,
            "approx_kl": self.sums["kl"] / tokens,
            "logprob_diff_max": self.diff_max,
            "entropy": self.sums["entropy"] / max(1, self.num_tokens),
            "replay_tokens": int(self.sums["replay_tokens"]),
            "replay_approx_kl": self.sums["replay_kl"] / self.sums["replay_tokens"] if replayed else None,
            "replay_masked_frac": self.sums["replay_masked"] / replayed if replayed else None,
            "replay_importance_weight_mean": self.sums["replay_weight"] / replayed if replayed else None,
        }

    def engine_kl(self, *contexts: Literal["text", "images"]) -> float | None:
        """Return the mean divergence of engine and trainer over the tokens of the contexts; None without any."""
        tokens = sum(self.sums[f"{context}_tokens"] for context in contexts)
        return sum(self.sums[f"{context}_kl"] for context in contexts) / tokens if tokens else None

    @property
    def engine_kl_tokens(self) -> int:
        return int(self.sums["text_tokens"] + self.sums["images_tokens"])

    @property
    def ref_kl(self) -> float | None:
        scored = self.sums["scored"] + self.sums["replay_scored"]
        return self.sums["reference"] / max(1, scored) if "reference" in self.sums else None


def device_peak_mib(model: Any) -> float | None:
    """Return the peak of this process's GPU memory since the last call; None for a model on a CPU."""
    device = next(model.parameters()).device
    if device.type != "cuda":
        return None
    peak = torch.cuda.max_memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    return peak / 2**20

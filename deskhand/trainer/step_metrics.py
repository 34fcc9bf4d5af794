"""Metrics of a training step. Means over tokens are not weighted by episode.

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
    value_loss: float | None = None
    """Mean over the updates; None without a critic."""
    explained_variance: float | None = None
    """Fraction of the variance of returns explained by the critic before the step; None without a critic."""
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
        self, batch: TrainBatch, scores: TokenScores, result: ClippedLoss, value: Tensor, *, first: bool, updated: bool
    ) -> None:
        """Add a micro-batch and its loss.

        `first`: whether it belongs to the first epoch; `updated`: whether the weights have changed in this step.
        """
        new_W, old_W = scores.logprobs_W.detach(), batch.behavior_logprobs_W
        self.loss += value.item()
        self.computed_tokens += sum(batch.inputs.lengths)
        self.sums["scored"] += len(new_W)
        self.sums["clipped"] += result.clipped.sum().item()
        self.sums["ratio"] += result.ratios.detach().sum().item()
        self.sums["weight"] += result.importance_weights.sum().item()
        self.sums["masked"] += (result.importance_weights == 0).sum().item()
        self.ratio_max = max(self.ratio_max, result.ratios.max().item())
        if first:
            kl_W = kl_estimate(new_W, old_W)
            self.num_tokens += len(new_W)
            self.sums["kl"] += kl_W.sum().item()
            self.sums["entropy"] += scores.entropies_W.sum().item()
            if not updated:
                self.diff_max = max(self.diff_max, (new_W - old_W).abs().max().item())
                own_W, after_W = (batch.versions_W == self.version) & batch.same_version_W, batch.after_image_W
                for context, chosen_W in (("text", own_W & ~after_W), ("images", own_W & after_W)):
                    self.sums[f"{context}_tokens"] += int(chosen_W.sum())
                    self.sums[f"{context}_kl"] += kl_W[chosen_W].sum().item()

    def add_reference(self, divergences_W: Tensor) -> None:
        """Add the divergences from the reference of the tokens just added."""
        self.sums["reference"] += divergences_W.detach().sum().item()

    def means(self) -> dict[str, Any]:
        """Return the fields of `StepMetrics` that always exist."""
        scored, tokens = max(1, self.sums["scored"]), max(1, self.num_tokens)
        return {
            "clip_frac": self.sums["clipped"] / scored,
            "ratio_mean": self.sums["ratio"] / scored,
            "ratio_max": self.ratio_max,
            "importance_weight_mean": self.sums["weight"] / scored,
            "masked_frac": self.sums["masked"] / scored,
            "approx_kl": self.sums["kl"] / tokens,
            "logprob_diff_max": self.diff_max,
            "entropy": self.sums["entropy"] / tokens,
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
        return self.sums["reference"] / max(1, self.sums["scored"]) if "reference" in self.sums else None


def device_peak_mib(model: Any) -> float | None:
    """Return the peak of this process's GPU memory since the last call; None for a model on a CPU."""
    device = next(model.parameters()).device
    if device.type != "cuda":
        return None
    peak = torch.cuda.max_memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    return peak / 2**20

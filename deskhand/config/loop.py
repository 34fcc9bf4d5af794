"""Settings of the training loop. Invariant: importing this needs no torch, and a wrong value is an error that names its field."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class HealthConfig(BaseModel):
    """When `rollout.health` raises an alarm, and how often it tries whether the model sees."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    vision_probe_every: int = Field(default=10, ge=0)
    """Steps between two canaries: rows are scored with swapped pictures. 0 leaves them out."""
    vision_probe_samples: int = Field(default=8, ge=1)
    min_image_sensitivity: float = Field(default=0.01, ge=0)
    """Least change by swapped pictures, nats."""
    max_failed_vision_probes: int = Field(default=2, ge=0)
    """Canaries in a row under that bound that end the run; 0 never ends it."""
    min_parse_rate: float = Field(default=0.5, ge=0, le=1)
    max_truncation_rate: float = Field(default=0.2, ge=0, le=1)
    max_zero_variance_fraction: float = Field(default=0.9, ge=0, le=1)
    no_signal_groups: int = Field(default=24, ge=1)
    """Groups that close without a step before their share of equal rewards is judged all the same: a run in which no group teaches
    takes no step, and would have no record to raise an alarm in."""
    max_error_fraction: float = Field(default=0.2, ge=0, le=1)
    max_engine_kl_text: float = Field(default=1e-2, ge=0)
    """Largest divergence of engine and trainer under the same weights where no picture precedes the token, nats per token."""
    max_engine_kl_images: float = Field(default=1e-2, ge=0)
    """The same where one does. Some models need more room here than for text."""
    max_masked_fraction: float = Field(default=0.05, ge=0, le=1)
    max_clip_fraction: float = Field(default=0.5, ge=0, le=1)
    max_ratio: float = Field(default=20.0, gt=1)
    """Largest ratio of a token's probability to that at the centre of the trust region."""
    min_entropy: float = Field(default=1e-3, ge=0)
    """Least entropy of a sampled token, nats."""
    entropy_spike_factor: float = Field(default=4.0, gt=1)
    grad_norm_spike_factor: float = Field(default=50.0, gt=1)
    baseline_steps: int = Field(default=5, ge=1)
    """Earlier steps that must be there before a sign is compared with them."""


class GroupConfig(BaseModel):
    """Episodes of one task that are compared."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    group_size: int = Field(default=8, ge=2)
    """Episodes of one task."""
    max_group_retries: int | None = Field(default=None, ge=0)
    """New episodes in place of unscored ones, per group; None is `group_size`."""


class LoopConfig(GroupConfig):
    """How much is rolled out and trained."""

    total_steps: int = Field(default=20, ge=1)
    """Versions of the weights to reach."""
    groups_per_step: int = Field(default=4, ge=1)
    max_staleness: int = Field(default=1, ge=0)
    max_concurrent_episodes: int = Field(default=4, ge=1)
    """Episodes at a time."""
    save_every: int = Field(default=1, ge=1)
    """Steps between checkpoints. What is trained between two is trained again after a kill, from the older one."""
    eval_every: int = Field(default=0, ge=0)
    """Steps between two evaluations on held-out tasks while training goes on; the best checkpoint is kept. 0 leaves them out."""
    health: HealthConfig = HealthConfig()

"""Settings of the training loop and its health alerts: the `loop` section. Imports no torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from deskhand.config.trainer import Section


class HealthConfig(Section):
    """Thresholds of the alerts in `recipes.health`, and how often the vision probe runs."""

    vision_probe_every: int = Field(default=10, ge=0)
    """Steps between vision probes, which score sequences with swapped images; 0 disables them."""
    vision_probe_samples: int = Field(default=8, ge=1)
    """Sequences scored by one vision probe."""
    min_image_sensitivity: float = Field(default=0.01, ge=0)
    """Minimum change of the log-probs when images are swapped, in nats."""
    max_failed_vision_probes: int = Field(default=2, ge=0)
    """Consecutive failed vision probes that stop the run; 0 never stops it."""
    min_parse_rate: float = Field(default=0.5, ge=0, le=1)
    """Minimum fraction of replies that parse."""
    max_truncation_rate: float = Field(default=0.2, ge=0, le=1)
    """Maximum fraction of replies cut at the token limit."""
    max_zero_variance_fraction: float = Field(default=0.9, ge=0, le=1)
    """Maximum fraction of groups whose rewards are all equal."""
    no_signal_groups: int = Field(default=24, ge=1)
    """Groups over which the zero-variance fraction is judged, also if there is no training step between them."""
    max_error_fraction: float = Field(default=0.2, ge=0, le=1)
    """Maximum fraction of episodes without a score because of an outage."""
    max_engine_kl_text: float | None = Field(default=None, ge=0)
    """Maximum KL divergence between engine and trainer before the first image, in nats per token; None chooses by
    engine and dtype."""
    max_engine_kl_images: float | None = Field(default=None, ge=0)
    """Maximum KL divergence between engine and trainer after an image, in nats per token; None chooses by engine and
    dtype."""
    publish_probe_samples: int = Field(default=2, ge=0)
    """Replies that the engine samples and the trainer scores after every weight update; 0 disables the probe."""
    publish_probe_tokens: int = Field(default=4, ge=1)
    """Maximum tokens of such a reply."""
    max_failed_publish_probes: int = Field(default=3, ge=0)
    """Consecutive failed publish probes that stop the run; 0 never stops it."""
    max_approx_kl: float = Field(default=0.1, ge=0)
    """Maximum KL divergence between the weights that sampled and those at the start of the step, in nats per token."""
    max_importance_weight_bias: float = Field(default=0.1, ge=0)
    """Maximum difference of the mean importance weight from 1."""
    max_stale_fraction: float = Field(default=0.2, ge=0, le=1)
    """Maximum fraction of the scored episodes of a step that are too old to train."""
    min_family_ratio: float = Field(default=0.5, ge=0, le=1)
    """Minimum ratio of a family's share of the trained groups to its share of the completed groups with signal, and of
    its share of the completed groups to that of the stale ones."""
    reward_drop_sigmas: float = Field(default=5.0, gt=0)
    """Maximum fall of the mean reward below its best earlier mean, in standard errors."""
    reward_window: int = Field(default=10, ge=2)
    """Steps in each of the two compared means of the reward."""
    length_change_factor: float = Field(default=3.0, gt=1)
    """Maximum ratio of the mean reply length to its recent baseline, or of the baseline to it."""
    max_masked_fraction: float = Field(default=0.05, ge=0, le=1)
    """Maximum fraction of tokens masked by `trainer.importance_weight_cap`."""
    max_replay_masked_fraction: float = Field(default=0.2, ge=0, le=1)
    """Maximum fraction of replayed tokens masked by `trainer.importance_weight_cap`."""
    max_clip_fraction: float | None = Field(default=None, ge=0, le=1)
    """Maximum fraction of tokens with a clipped ratio. None: 0.5, or 1 for algorithms such as `gspo`, whose narrow
    range for whole replies clips many of them."""
    max_ratio: float = Field(default=20.0, gt=1)
    """Maximum ratio of a token's probability to its probability at the center of the trust region."""
    min_entropy: float = Field(default=1e-3, ge=0)
    """Minimum entropy of sampled tokens, in nats."""
    entropy_spike_factor: float = Field(default=4.0, gt=1)
    """Maximum ratio of the entropy to its recent baseline."""
    grad_norm_spike_factor: float = Field(default=50.0, gt=1)
    """Maximum ratio of the gradient norm to its recent baseline."""
    baseline_steps: int = Field(default=5, ge=1)
    """Earlier steps required before a metric is compared with its baseline."""


class GroupConfig(Section):
    """Groups of episodes of one task, whose rewards are compared."""

    group_size: int = Field(default=8, ge=2)
    """Episodes per group."""
    max_group_retries: int | None = Field(default=None, ge=0)
    """Maximum replacements for errored episodes, per group; None is `group_size`."""
    overlong_buffer_len: int = Field(default=0, ge=0)
    """Final tokens of `agent.max_new_tokens` in which a reply lowers the reward of its episode (DAPO); 0 disables
    it."""
    overlong_penalty_factor: float = Field(default=1.0, gt=0)
    """Reward deduction for a reply of the maximum length."""


class LoopConfig(GroupConfig):
    """Rollouts, steps and checkpoints."""

    total_steps: int = Field(default=20, ge=1)
    """Training steps."""
    groups_per_step: int = Field(default=4, ge=1)
    """Groups in one training step."""
    group_by: Literal["task", "family"] = "task"
    """What the episodes of a group have in common: the task, or only its family. With "family", each plays a variant of
    its own, so that a step trains on more tasks and fewer groups have equal rewards."""
    max_staleness: int = Field(default=1, ge=0)
    """Maximum number of weight versions between sampling and training."""
    replay_groups: int = Field(default=0, ge=0)
    """Groups of earlier steps that each step trains again, with their recorded log-probs; 0 disables replay."""
    replay_best_only: bool = False
    """Replay only the episodes of these groups whose advantage is positive (self-imitation)."""
    max_replay_staleness: int = Field(default=8, ge=1)
    """Maximum number of weight versions between sampling and replay."""
    max_concurrent_episodes: int = Field(default=4, ge=1)
    """Concurrent training episodes."""
    curriculum: Literal["uniform", "frontier"] = "uniform"
    """Choice of the training tasks: families in turn, or families in proportion to the probability that the rewards of
    a group differ, as the success so far predicts it."""
    curriculum_uniform_share: float = Field(default=0.1, ge=0, le=1)
    """Share of the groups that "frontier" draws from all families alike."""
    success_decay: float = Field(default=0.9, gt=0, le=1)
    """Weight of an episode in the success statistics, per training step of its age."""
    early_stop_probability: float = Field(default=0.0, ge=0, le=1)
    """A group whose rewards are equal so far starts no more episodes if they would differ with less than this
    probability, as the success so far predicts it; until they differ, it runs two episodes at once while other groups
    have work. 0 plays every group to its end, as many episodes at once as possible."""
    save_every: int = Field(default=1, ge=1)
    """Steps between checkpoints. After a crash, training resumes from the last one."""
    eval_every: int = Field(default=0, ge=0)
    """Steps between evaluations on the validation split during training, which select the best checkpoint; 0 disables
    them."""
    health: HealthConfig = HealthConfig()

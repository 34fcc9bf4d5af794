"""Settings of training. Invariant: importing this needs no torch, and a wrong value is an error that names its field."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from deskhand import registry

OptimizerName = Literal["adamw_fused", "adamw", "adamw_8bit"]


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class LoraConfig(_Settings):
    """Low-rank adapters (LoRA, arXiv:2106.09685) on the language model, and on the vision tower where `vision` says so; everything
    else is frozen."""

    rank: int = Field(default=16, ge=1)
    alpha: float = Field(default=32.0, gt=0)
    """The update is scaled by alpha / rank."""
    target_modules: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    """Projections of the language model's layers."""
    vision: bool = False
    """Whether the projections of the vision tower's blocks get adapters, too."""
    load_in_4bit: bool = False
    """Keep the frozen projections of the language model in 4 bits (QLoRA, arXiv:2305.14314; the package bitsandbytes)."""


class PolicyConfig(_Settings):
    """How much is computed at a time; it never changes what is computed."""

    max_tokens_per_mb: int = Field(default=8192, ge=1)
    """Rows times longest row of a micro-batch; a single longer row is a micro-batch of its own."""
    max_vision_patches_per_mb: int = Field(default=16384, ge=1)
    """Patches whose tower activations are kept for the backward pass; more images are encoded a second time instead."""
    gradient_checkpointing: bool = False
    """Keep only the states between the layers of the language model for the backward pass, and compute each layer a second time."""
    train_vision: bool = True
    """False freezes the vision tower. With adapters, `adapter.vision` decides."""
    lora: LoraConfig | None = None


class CriticConfig(_Settings):
    """The critic of PPO (`training.critic`); other algorithms have none."""

    backbone: Literal["policy", "own"] = "policy"
    """Whether values are read from the policy's hidden states, or from a second copy of the model, which takes its memory again."""
    train_backbone: bool = True
    """Whether the value loss also teaches the trunk; False leaves it to the head alone."""
    vf_coef: float = Field(default=0.5, ge=0)
    """Factor on the value loss where it teaches the policy's trunk."""
    learning_rate: float = Field(default=1e-3, gt=0)
    """Of the value head."""
    backbone_learning_rate: float = Field(default=1e-5, gt=0)
    """Of a trunk of its own."""
    cliprange_value: float | None = Field(default=0.2, gt=0)
    """How far a value moves within one step before its loss no longer pulls; None does not clip."""
    token_gamma: float = Field(default=1.0, gt=0, le=1)
    token_gae_lambda: float = Field(default=1.0, ge=0, le=1)
    turn_gamma: float = Field(default=1.0, gt=0, le=1)
    turn_gae_lambda: float = Field(default=1.0, ge=0, le=1)
    """Below 1 the critic's values take the place of what came later, which pays once they are good: at the beginning they are all
    the mean return, so that an early reply would be worth nothing."""


class TrainerConfig(_Settings):
    """One `Trainer.step`."""

    learning_rate: float = Field(default=1e-5, gt=0)
    algorithm: str = "grpo"
    """How rewards become advantages and what is clipped: grpo, dr_grpo, gspo, ppo, or the import path of your own."""
    optimizer: OptimizerName = "adamw_fused"
    """AdamW as one kernel, as plain operations, or with moments of 8 bits (a GPU and the package bitsandbytes)."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.95, ge=0, lt=1)
    weight_decay: float = Field(default=0.0, ge=0)
    max_grad_norm: float = Field(default=1.0, gt=0)
    warmup_steps: int = Field(default=0, ge=0)
    """Optimizer updates over which the learning rate rises linearly."""
    ppo_epochs: int = Field(default=1, ge=1)
    """How often the samples of a step are gone through."""
    num_minibatches: int = Field(default=1, ge=1)
    """Optimizer updates per pass; an episode is never split between two."""
    clip_ratio_low: float | None = Field(default=None, ge=0, le=1)
    clip_ratio_high: float | None = Field(default=None, ge=0)
    """Bounds of the ratio, 1 - low to 1 + high; None takes the algorithm's own."""
    dual_clip: float | None = Field(default=None, gt=1)
    """Bounds what a token with a negative advantage can cost, in multiples of the advantage; None does not."""
    proximal: Literal["start", "behaviour"] = "start"
    """Centre of the trust region: the weights at the start of the step (decoupled), or those that sampled (plain PPO)."""
    importance_weight_cap: float | None = Field(default=5.0, gt=0)
    """Most that the start-of-step / behaviour ratio may be; None keeps all."""
    importance_weight_mode: Literal["drop", "truncate"] = "drop"
    """Whether tokens over the cap are dropped or weigh as much as the cap."""
    kl_loss_coef: float = Field(default=0.0, ge=0)
    """Factor on the divergence from the untrained model, added to the loss; 0 leaves it out. With adapters the reference is the
    model without them; without adapters it is a second copy of the weights."""
    kl_estimator: Literal["k2", "k3"] = "k3"
    loss_divisor: float = Field(default=256.0, gt=0)
    """Dr.GRPO's constant, by which an episode's sum over tokens is divided; about the tokens of a 10-step episode."""
    critic: CriticConfig = CriticConfig()
    torch_threads: int | None = Field(default=None, ge=1)
    """Torch threads of a step; None leaves torch's setting."""
    seed: int = 0
    """Of the order in which episodes are split into minibatches."""

    @field_validator("algorithm")
    @classmethod
    def _is_known(cls, ref: str) -> str:
        return registry.check("algorithm", ref)

    @property
    def supervised(self) -> TrainerConfig:
        """Without what imitation has no use for: no critic is made, no reference copied, and an update takes its batch whole."""
        return self.model_copy(update={"algorithm": "grpo", "kl_loss_coef": 0.0, "ppo_epochs": 1, "num_minibatches": 1})


class SupervisedConfig(_Settings):
    """A warm start by `deskhand sft`. The optimizer is that of `trainer`, with a learning rate of its own."""

    total_steps: int = Field(default=200, ge=1)
    """Updates."""
    learning_rate: float = Field(default=1e-4, gt=0)
    warmup_steps: int = Field(default=20, ge=0)
    """Updates over which the learning rate rises."""
    decay_fraction: float = Field(default=0.4, ge=0, le=1)
    """Share of the training, at its end, over which it falls to 0."""
    episodes_per_batch: int = Field(default=8, ge=1)
    """Whole episodes in one update."""
    num_demonstrations: int = Field(default=200, ge=2)
    """Episodes that the oracle plays, where no recorded ones are given."""
    val_fraction: float = Field(default=0.1, ge=0, lt=1)
    """Share of the episodes that is not learned from; the loss on them is shown."""
    log_every: int = Field(default=10, ge=1)
    save_every: int = Field(default=50, ge=1)

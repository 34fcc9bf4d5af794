"""Settings of training. Invariant: importing this needs no torch, and a wrong value is an error that names its field."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class AdapterConfig(_Settings):
    """Low-rank adapters (LoRA, arXiv:2106.09685) on the language model; everything else, the vision tower too, is frozen."""

    rank: int = Field(default=16, ge=1)
    alpha: float = Field(default=32.0, gt=0)
    """The update is scaled by alpha / rank."""
    targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class PolicyConfig(_Settings):
    """How much is computed at a time; it never changes what is computed."""

    batch_tokens: int = Field(default=8192, ge=1)
    """Rows times longest row of a micro-batch; a single longer row is a micro-batch of its own."""
    image_patches: int = Field(default=16384, ge=1)
    """Patches whose tower activations are kept for the backward pass; more images are encoded a second time instead."""
    train_vision: bool = True
    """False freezes the vision tower. Adapters always freeze it."""
    adapter: AdapterConfig | None = None


class TrainerConfig(_Settings):
    """One `Trainer.step`."""

    learning_rate: float = Field(default=1e-5, gt=0)
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.95, ge=0, lt=1)
    weight_decay: float = Field(default=0.0, ge=0)
    max_gradient_norm: float = Field(default=1.0, gt=0)
    warmup_steps: int = Field(default=0, ge=0)
    """Optimizer updates over which the learning rate rises linearly."""
    passes: int = Field(default=1, ge=1)
    """How often the samples of a step are gone through."""
    minibatches: int = Field(default=1, ge=1)
    """Optimizer updates per pass; an episode is never split between two."""
    clip_low: float = Field(default=0.2, ge=0, le=1)
    clip_high: float = Field(default=0.28, ge=0)
    proximal: Literal["start", "behaviour"] = "start"
    """Centre of the trust region: the weights at the start of the step (decoupled), or those that sampled (plain PPO)."""
    behaviour_cap: float | None = Field(default=5.0, gt=0)
    """Tokens whose start-of-step / behaviour ratio exceeds this are dropped; None keeps all."""
    threads: int | None = Field(default=None, ge=1)
    """Torch threads of a step; None leaves torch's setting."""
    seed: int = 0
    """Of the order in which episodes are split into minibatches."""


class SupervisedConfig(_Settings):
    """One `sft.train`."""

    steps: int = Field(default=1000, ge=1)
    """Length of the cosine schedule; training ends there or when the batches end."""
    learning_rate: float = Field(default=1e-3, gt=0)
    final_learning_rate: float = Field(default=0.0, ge=0)
    warmup_steps: int = Field(default=50, ge=0)
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.95, ge=0, lt=1)
    weight_decay: float = Field(default=0.01, ge=0)
    max_gradient_norm: float = Field(default=1.0, gt=0)
    evaluate_every: int = Field(default=0, ge=0)
    """Steps between two calls of the evaluation callback; 0 is never."""
    threads: int | None = Field(default=None, ge=1)

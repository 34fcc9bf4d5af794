"""Settings of training: the `policy`, `trainer` and `sft` sections. Imports no torch."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from deskhand import registry

OptimizerName = Literal["adamw_fused", "adamw", "adamw_8bit", "muon"]


def reference_to(kind: registry.Kind) -> AfterValidator:
    """Annotation of a setting that names a part of that kind."""
    return AfterValidator(partial(registry.check, kind))


class Section(BaseModel):
    """Base of all sections of the settings."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class LoraConfig(Section):
    """LoRA (arXiv:2106.09685) on the language model and optionally the vision tower; all other weights are frozen."""

    rank: int = Field(default=16, ge=1)
    """Rank of the LoRA matrices."""
    alpha: float = Field(default=32.0, gt=0)
    """Scale of the update, divided by `rank`."""
    target_modules: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    """Projections of the language model's layers that get LoRA."""
    vision: bool = False
    """Also apply LoRA to the vision tower's projections."""
    load_in_4bit: bool = False
    """Store the frozen projections of the language model in 4 bits (QLoRA, arXiv:2305.14314; requires bitsandbytes)."""


class PolicyConfig(Section):
    """The trained weights, and memory limits that do not change the result."""

    max_tokens_per_mb: int = Field(default=8192, ge=1)
    """Tokens per micro-batch; a longer sequence gets a micro-batch of its own."""
    max_vision_patches_per_mb: int = Field(default=16384, ge=1)
    """Vision patches whose activations are stored for the backward pass; beyond it, images are encoded twice."""
    gradient_checkpointing: bool = False
    """Store only the states between language-model layers, and recompute each layer in the backward pass."""
    train_vision: bool = True
    """Train the vision tower. With LoRA, `lora.vision` decides instead."""
    lora: LoraConfig | None = None
    """LoRA settings; None trains the full weights."""


class CriticConfig(Section):
    """Critic of PPO (`trainer.critic`); other algorithms have none."""

    backbone: Literal["shared", "separate"] = "shared"
    """Read values from the policy's hidden states, or from a second copy of the model, which doubles the memory."""
    train_backbone: bool = True
    """Backpropagate the value loss into the backbone; False trains the value head only."""
    vf_coef: float = Field(default=0.5, ge=0)
    """Weight of the value loss in a shared backbone."""
    learning_rate: float = Field(default=1e-3, gt=0)
    """Learning rate of the value head."""
    backbone_learning_rate: float = Field(default=1e-5, gt=0)
    """Learning rate of a separate backbone."""
    cliprange_value: float | None = Field(default=0.2, gt=0)
    """Maximum change of a value within one step before its loss is clipped; None does not clip."""
    token_gamma: float = Field(default=1.0, gt=0, le=1)
    """Discount factor between the tokens of a reply."""
    token_gae_lambda: float = Field(default=1.0, ge=0, le=1)
    """GAE lambda between the tokens of a reply."""
    turn_gamma: float = Field(default=1.0, gt=0, le=1)
    """Discount factor between turns."""
    turn_gae_lambda: float = Field(default=1.0, ge=0, le=1)
    """GAE lambda between turns. Below 1, returns bootstrap from the critic, which requires a trained critic."""


class DistillationConfig(Section):
    """On-policy distillation: sampled tokens are trained toward a teacher with the same tokenizer."""

    teacher: str
    """Checkpoint folder or Hugging Face hub name, which is loaded in addition to the policy and never trained; or the
    URL of a vLLM server (`http://host:port`) started with `--enable-scale-out`."""
    distill_loss_weight: float = Field(default=1.0, gt=0)
    """Weight of the teacher's log-prob minus the student's in the advantage of a token."""
    rl_loss_weight: float = Field(default=1.0, ge=0)
    """Weight of the reward's advantage; 0 trains toward the teacher alone."""
    api_key_env: str | None = None
    """Environment variable with the server's API key."""

    @property
    def is_served(self) -> bool:
        """Whether the teacher is a server."""
        return "://" in self.teacher


class TrainerConfig(Section):
    """One `Trainer.step`."""

    learning_rate: float = Field(default=1e-5, gt=0)
    """Learning rate of the policy."""
    algorithm: Annotated[str, reference_to("algorithm")] = "grpo"
    """Algorithm: advantages and clipping. grpo, dr_grpo, dapo, gspo, cispo, rloo, gigpo,
    reinforce_plus_plus, reinforce_plus_plus_baseline, ppo, or the import path of your own."""
    optimizer: OptimizerName = "adamw_fused"
    """AdamW: fused kernel, plain operations, or 8-bit moments (requires a GPU and bitsandbytes). `muon` is Muon for
    hidden matrices and AdamW for the other parameters, with one learning rate."""
    optimizer_offload: bool = False
    """Keep AdamW's moments and the float32 master weights in host memory, and bring them to the GPU in parts for an
    update, with equal results. Saves 12 bytes of GPU memory per trained weight (8 without masters). Not with
    `adamw_8bit` or `muon`."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """Decay of AdamW's first moment."""
    beta2: float = Field(default=0.95, ge=0, lt=1)
    """Decay of AdamW's second moment."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Decoupled weight decay of matrices; Muon's is for hidden matrices only."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Maximum norm of the gradient."""
    warmup_steps: int = Field(default=0, ge=0)
    """Optimizer updates with a linearly rising learning rate."""
    lr_scheduler_type: Literal["constant", "linear", "cosine"] = "constant"
    """Learning rate over `loop.total_steps`: constant, or falling to `min_lr_ratio` in a line or half a cosine."""
    min_lr_ratio: float = Field(default=0.0, ge=0, le=1)
    """Final learning rate of a schedule, as a fraction of `learning_rate`."""
    ppo_epochs: int = Field(default=1, ge=1)
    """Passes over the samples of a step."""
    num_minibatches: int | None = Field(default=None, ge=1)
    """Optimizer updates per pass; an episode is never split between two. None is the algorithm's own: 4 for gspo, 1
    for the others."""
    loss_norm: Literal["episode", "token", "constant", "sum"] | None = None
    """Divisor of token losses: the episode's tokens and the number of episodes, all tokens of the update,
    `loss_divisor` and the number of episodes, or the number of episodes alone. None is the algorithm's own."""
    clip_ratio_low: float | None = Field(default=None, ge=0, le=1)
    """Lower clipping bound of the ratio, 1 - value; None is the algorithm's own. With one update per step and
    `decoupled_loss` every ratio is 1, and no bound acts."""
    clip_ratio_high: float | None = Field(default=None, ge=0)
    """Upper clipping bound of the ratio, 1 + value; None is the algorithm's own."""
    dual_clip: float | None = Field(default=None, gt=1)
    """Maximum loss of a token with a negative advantage, in multiples of the advantage; None disables it."""
    decoupled_loss: bool = True
    """Center the trust region on the weights at the start of the step; False centers it on the weights that sampled."""
    importance_weight_cap: float | None = Field(default=5.0, gt=0)
    """Maximum probability ratio between the start of the step and sampling; None does not cap."""
    importance_weight_min: float | None = Field(default=None, gt=0, lt=1)
    """Minimum of that ratio; None has none. 0.5, with a cap of 5 and "mask", is IcePop."""
    importance_weight_mode: Literal["mask", "truncate"] = "mask"
    """Mask tokens outside these bounds, or truncate their weight to the bound."""
    importance_weight_level: Literal["token", "sequence", "geometric"] = "token"
    """The ratio of each token, the product of the ratios over its reply, or their geometric mean over it."""
    entropy_coeff: float = Field(default=0.0, ge=0)
    """Weight of the entropy bonus (Mnih et al., arXiv:1602.01783, section 4): the loss minus `entropy_coeff` times the
    entropy -sum p log p of the policy at each sampled token, in nats, averaged with the weights of the policy loss."""
    kl_loss_coef: float = Field(default=0.0, ge=0)
    """Weight of the KL divergence from the initial model in the loss. Without LoRA it needs a second copy of the
    weights."""
    kl_estimator: Literal["k2", "k3"] = "k3"
    """Estimator of the KL loss."""
    distillation: DistillationConfig | None = None
    """Teacher of on-policy distillation; None trains by rewards alone."""
    loss_divisor: float = Field(default=256.0, gt=0)
    """Constant divisor of an episode's token sum, for `loss_norm` "constant" and Dr. GRPO."""
    critic: CriticConfig = CriticConfig()
    torch_threads: int | None = Field(default=None, ge=1)
    """Torch threads of a step; None keeps torch's setting."""
    seed: int = 0
    """Random seed of the split into minibatches."""

    @model_validator(mode="after")
    def _offloads_what_it_can(self) -> TrainerConfig:
        if self.optimizer_offload and self.optimizer in ("adamw_8bit", "muon"):
            raise ValueError(
                f"trainer.optimizer_offload is not for optimizer {self.optimizer}; use adamw_fused or remove it"
            )
        return self

    @property
    def supervised(self) -> TrainerConfig:
        """These settings without critic, KL loss, teacher and minibatches, for supervised fine-tuning."""
        names = ("algorithm", "kl_loss_coef", "entropy_coeff", "ppo_epochs", "num_minibatches", "lr_scheduler_type")
        names += ("clip_ratio_low", "clip_ratio_high", "dual_clip", "loss_norm", "decoupled_loss")
        names += ("importance_weight_min", "importance_weight_mode", "importance_weight_level", "distillation")
        defaults = TrainerConfig()
        return self.model_copy(update={name: getattr(defaults, name) for name in names})


class SupervisedConfig(Section):
    """Supervised warm start (`deskhand sft`). Other optimizer settings come from `trainer`."""

    total_steps: int = Field(default=200, ge=1)
    """Optimizer updates."""
    learning_rate: float = Field(default=1e-4, gt=0)
    """Peak learning rate."""
    warmup_steps: int = Field(default=20, ge=0)
    """Updates with a linearly rising learning rate."""
    decay_fraction: float = Field(default=0.4, ge=0, le=1)
    """Final fraction of the updates over which the learning rate falls to 0."""
    episodes_per_batch: int = Field(default=8, ge=1)
    """Episodes and screens per update."""
    num_demonstrations: int = Field(default=200, ge=2)
    """Oracle episodes to play if no recorded ones are given."""
    num_screens: int = Field(default=0, ge=0)
    """Screenshots with questions about where their elements are, mixed into the demonstrations; families without such
    questions have none. Rounded up to whole starts of the programs."""
    questions_per_screen: int = Field(default=6, ge=1)
    """Maximum number of questions about one screenshot."""
    coordinate_grid: int = Field(default=1, ge=1, le=100)
    """Spacing of the oracle's and the answers' coordinates in thousandths of the screen. The bundled policy was
    pretrained on 20."""
    min_score: float = Field(default=1.0, gt=0, le=1)
    """Minimum score of the episodes of other runs that are imitated."""
    val_fraction: float = Field(default=0.1, ge=0, lt=1)
    """Fraction of the episodes held out for the validation loss."""
    log_every: int = Field(default=10, ge=1)
    """Updates between two reports."""
    save_every: int = Field(default=50, ge=1)
    """Updates between checkpoints."""

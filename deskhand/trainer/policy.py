"""The trained model: scores sequences and computes gradients of functions of their log-probs.

Used by `trainer.trainer` and `trainer.supervised`. The vision tower runs once per unique image and gradient (once per
step if it is frozen): the features are leaves of the micro-batches' graphs, and one backward pass through the tower
follows. The model stays in eval mode, since dropout would make log-probs differ from the engine's.

Invariant: log-probs follow the definition in `types.Sampling`.

Dimensions: W trained tokens of a micro-batch, C of them at once, S rows of image features, H hidden size, V
vocabulary.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from deskhand.config.trainer import PolicyConfig
from deskhand.models.families import FAMILIES
from deskhand.models.forward import forward_decoder, log_softmax, unwrap
from deskhand.recorder import graph
from deskhand.trainer.batch import MicrobatchPlan, TrainBatch, check_sequence, plan_microbatches
from deskhand.trainer.lora import extract_lora, inject_lora, lora_disabled, merged_weights
from deskhand.trainer.offload import slices_of, to_host
from deskhand.trainer.vision_features import KnownFeatures, VisionFeatureCache, is_frozen
from deskhand.types import LoraWeights, PreparedImage

MAX_LOGIT_BYTES = 256 << 20
"""Maximum float32 logits at once. Those of more tokens are computed in parts, and again in the backward pass."""


class MasterWeights:
    """float32 master copies of bfloat16 and float16 weights: `tensors`, by name, are what the optimizer updates.

    Gradients of micro-batches are moved to the master and accumulated there in float32; `sync_to_model` casts it back.
    In bfloat16 an update below 1/256 of a weight would be lost. A float32 parameter is its own master. `holders`, by
    name, have the gradients as their `.grad`; they are the masters themselves, until these are offloaded.
    """

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self._parameters = dict(parameters)
        self.tensors: dict[str, Tensor] = {}
        self.holders: dict[str, Tensor] = {}
        for name, parameter in parameters.items():
            half = parameter.dtype in (torch.bfloat16, torch.float16)
            self.tensors[name] = parameter.detach().float().clone().requires_grad_() if half else parameter
            self.holders[name] = self.tensors[name]
            if half:
                parameter.register_post_accumulate_grad_hook(partial(_move_gradient, self.holders, name))

    def offload(self) -> None:
        """Move the masters to host memory. Gradients stay on the device, on holders without memory of their own."""
        for name, parameter in self._parameters.items():
            if self.tensors[name] is parameter or self.tensors[name] is not self.holders[name]:
                continue
            self.tensors[name] = to_host(self.tensors[name].detach(), parameter.device)
            nothing = torch.full((), torch.nan, device=parameter.device)
            self.holders[name] = nothing.expand(parameter.shape).requires_grad_()

    @torch.no_grad()
    def sync_to_model(self) -> None:
        for name, parameter in self._parameters.items():
            if self.tensors[name] is not parameter:
                for part, master in zip(slices_of(parameter), slices_of(self.tensors[name]), strict=True):
                    part.copy_(master.to(part.device, non_blocking=True))


def _move_gradient(holders: Mapping[str, Tensor], name: str, parameter: Tensor) -> None:
    if parameter.grad is not None:
        gradient, holder = parameter.grad.float(), holders[name]
        holder.grad = gradient if holder.grad is None else holder.grad.add_(gradient)
        parameter.grad = None


@dataclass(frozen=True, slots=True)
class TokenScores:
    """Log-probs (with gradient) and entropies (with, if asked for) of the trained tokens, float32[W] in nats."""

    logprobs_W: Tensor
    entropies_W: Tensor
    hidden_WH: Tensor
    """Hidden state that each token was sampled from, with gradient."""


class Policy:
    """Model of a checkpoint under training.

    Args:
        banned_ids: Token ids that are never sampled; must equal those of the engine. The image placeholder is added.
        seed: Seed of the initial LoRA weights.

    `lock` is held while weights are changed or copied.
    """

    def __init__(
        self, model: Any, config: PolicyConfig | None = None, banned_ids: Sequence[int] = (), seed: int = 0
    ) -> None:
        self.model = model.eval()
        self.config = config or PolicyConfig()
        self.banned_ids = tuple(sorted({*banned_ids, unwrap(model).config.image_token_id}))
        self.lock = threading.Lock()
        self.pause_engine: Callable[[], AbstractContextManager[None]] = nullcontext
        """Context entered while the model temporarily is not the policy; pauses an engine that shares its weights."""
        self.known_features: KnownFeatures | None = None
        """Image features of an engine with the same vision tower, used while the tower is frozen."""
        self._reference: Policy | None = None
        self._cached_features: VisionFeatureCache | None = None
        if not self.config.train_vision:
            unwrap(model).model.visual.requires_grad_(False)
        if self.config.lora is not None:
            torch.manual_seed(seed)
            inject_lora(unwrap(model), self.config.lora)
        self._masters = MasterWeights(self._trained())

    def _trained(self) -> dict[str, Tensor]:
        return {name: parameter for name, parameter in self.model.named_parameters() if parameter.requires_grad}

    def parameters(self) -> dict[str, Tensor]:
        """Return the tensors an optimizer updates, by name: parameters, or float32 masters of half-precision ones.

        Tied parameters appear once.
        """
        return self._masters.tensors

    def gradient_holders(self) -> dict[str, Tensor]:
        """Return the tensors whose `.grad` are the gradients, by name: those of `parameters`, or others on the device
        if the masters are offloaded."""
        return self._masters.holders

    def offload_masters(self) -> None:
        """Keep the float32 masters in host memory from now on; only `trainer.offload.OffloadedAdamW` updates these."""
        self._masters.offload()

    def write_back(self) -> None:
        """Copy the master weights into the model. Call with `lock` held."""
        self._masters.sync_to_model()

    @property
    def is_rounded(self) -> bool:
        """Whether the initial weights differ from the checkpoint because of 4-bit quantization."""
        return self.config.lora is not None and self.config.lora.load_in_4bit

    def snapshot(self, device: str | None = None) -> dict[str, Tensor]:
        """Return a copy of the model's tensors by name, LoRA merged in, on `device` or in place."""
        with self.lock:
            return merged_weights(unwrap(self.model), device)

    def checkpoint_weights(self) -> dict[str, Tensor]:
        """Return a copy of all weights in host memory as a checkpoint stores them, LoRA merged in."""
        return FAMILIES[unwrap(self.model).config.model_type].stored(self.snapshot("cpu"))

    def adapter(self, *, tower: bool = False) -> LoraWeights | None:
        """Return a copy of the LoRA weights, or None if an engine with the base model cannot use them.

        That is the case for a quantized base, and for LoRA on the vision tower unless `tower` is set.
        """
        config = self.config.lora
        if config is None or config.load_in_4bit or (config.vision and not tower):
            return None
        with self.lock:
            return extract_lora(unwrap(self.model), config)

    def check(self, sequence: graph.Sequence, images: Mapping[str, PreparedImage]) -> None:
        check_sequence(sequence, images, unwrap(self.model).config.image_token_id, self.banned_ids)

    def plan(self, sequences: Sequence[graph.Sequence], images: Mapping[str, PreparedImage]) -> MicrobatchPlan:
        """Return micro-batches of the sequences. Raises `RecordError` if one is invalid."""
        for sequence in sequences:
            self.check(sequence, images)
        return plan_microbatches(sequences, images, self.model, self.config.max_tokens_per_mb)

    def logprobs(self, sequences: Sequence[graph.Sequence], images: Mapping[str, PreparedImage]) -> list[np.ndarray]:
        """Return the log-probs of the sampled tokens of each sequence, float32[tokens], under the current weights."""
        return self.each(sequences, images, lambda batch, hidden_WH: self.scores(batch, hidden_WH).logprobs_W)

    @torch.no_grad()
    def reference_logprobs(
        self, sequences: Sequence[graph.Sequence], images: Mapping[str, PreparedImage]
    ) -> list[np.ndarray]:
        """Return the log-probs under the initial weights: LoRA off, or the copy of `freeze_reference`."""
        if self._reference is not None:
            return self._reference.logprobs(sequences, images)
        if self.config.lora is None:
            raise ValueError("no reference policy; call freeze_reference before training")
        with self.pause_engine(), lora_disabled(unwrap(self.model)):
            return self.logprobs(sequences, images)

    def freeze_reference(self) -> None:
        """Prepare `reference_logprobs`. Call before the first update; without LoRA it copies the model."""
        if self.config.lora is None:
            self._reference = self.copy(frozen=True)

    def copy(self, *, frozen: bool = False) -> Policy:
        twin = copy.copy(self)
        twin.model, twin.lock = copy.deepcopy(self.model), threading.Lock()
        twin._reference = twin._cached_features = twin.known_features = None
        if frozen:
            twin.model.requires_grad_(False)
        twin._masters = MasterWeights(twin._trained())
        return twin

    @contextmanager
    def cached_vision(self, images: Mapping[str, PreparedImage]) -> Iterator[None]:
        """Encode each image once for the whole block if the vision tower is frozen."""
        if is_frozen(self.model):
            self._cached_features = self._features(images, gradients=False)
        try:
            yield
        finally:
            self._cached_features = None

    def _features(self, images: Mapping[str, PreparedImage], *, gradients: bool) -> VisionFeatureCache:
        return self._cached_features or VisionFeatureCache(
            self.model,
            images,
            self.config.max_vision_patches_per_mb,
            gradients=gradients,
            known=self.known_features,
        )

    @torch.no_grad()
    def each(
        self,
        sequences: Sequence[graph.Sequence],
        images: Mapping[str, PreparedImage],
        function: Callable[[TrainBatch, Tensor], Tensor],
    ) -> list[np.ndarray]:
        """Return the values of `function(batch, hidden_WH)`, one per trained token, by sequence."""
        work = self.plan(sequences, images)
        features = self._features(work.images, gradients=False)
        result = [np.empty(0, dtype=np.float32)] * len(sequences)
        for batch in work.batches:
            values_W, rows_W = (
                function(batch, self.hidden(batch, features.of)).cpu().numpy(),
                batch.rows_W.cpu().numpy(),
            )
            for b, index in enumerate(batch.rows):
                result[index] = values_W[rows_W == b]
        return result

    def hidden(self, batch: TrainBatch, features: Callable[[Sequence[str], Tensor], tuple[Tensor, ...]]) -> Tensor:
        """Return the hidden states [W, H] that the trained tokens of a micro-batch were sampled from.

        `features` is `VisionFeatureCache.of`.
        """
        inputs = batch.inputs
        shown_NH = features(inputs.image_hashes, inputs.feature_index_N)
        hidden_1TH = forward_decoder(
            self.model,
            inputs.input_ids_1T,
            inputs.position_ids_31T,
            shown_NH,
            inputs.placeholder_index_N,
            recompute=self.config.gradient_checkpointing,
            lengths=inputs.lengths,
        )
        return hidden_1TH[0].index_select(0, batch.positions_W - 1)

    def scores(self, batch: TrainBatch, hidden_WH: Tensor, *, entropy_gradient: bool = False) -> TokenScores:
        core = unwrap(self.model)
        targets_W = batch.inputs.input_ids_1T[0].index_select(0, batch.positions_W)

        def score(hidden_CH: Tensor, targets_C: Tensor) -> tuple[Tensor, Tensor]:
            logprobs_CV = log_softmax(core.lm_head(hidden_CH), batch.temperature, self.banned_ids)
            with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
                # Banned ids have probability 0 and log-prob -inf, whose product has no gradient.
                finite_CV = logprobs_CV.masked_fill(logprobs_CV.isneginf(), 0.0)
                entropies_C = -(logprobs_CV.exp() * finite_CV).sum(-1)
            return logprobs_CV.gather(1, targets_C.unsqueeze(1)).squeeze(1), entropies_C

        at_once = max(1, MAX_LOGIT_BYTES // (4 * core.config.text_config.vocab_size))
        if len(targets_W) <= at_once:
            return TokenScores(*score(hidden_WH, targets_W), hidden_WH)
        run = partial(checkpoint, score, use_reentrant=False) if torch.is_grad_enabled() else score
        parts = [run(*part) for part in zip(hidden_WH.split(at_once), targets_W.split(at_once), strict=True)]
        logprobs_W, entropies_W = (torch.cat(column) for column in zip(*parts, strict=True))
        return TokenScores(logprobs_W, entropies_W, hidden_WH)

    def accumulate(
        self,
        work: MicrobatchPlan,
        loss: Callable[[TrainBatch, TokenScores], Tensor],
        *,
        entropy_gradient: bool = False,
    ) -> None:
        """Add the gradient of `loss(batch, scores)`, summed over micro-batches, to `.grad`."""
        self.accumulate_hidden(
            work,
            lambda batch, hidden_WH: loss(batch, self.scores(batch, hidden_WH, entropy_gradient=entropy_gradient)),
        )

    def accumulate_hidden(self, work: MicrobatchPlan, loss: Callable[[TrainBatch, Tensor], Tensor]) -> None:
        """Add the gradient of `loss(batch, hidden_WH)`, summed over micro-batches, to `.grad`."""
        features = self._features(work.images, gradients=True)
        for batch in work.batches:
            loss(batch, self.hidden(batch, features.of)).backward()
        features.backward()

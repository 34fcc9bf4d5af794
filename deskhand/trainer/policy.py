"""The model that is trained. Invariant: its log-probs are those of `engines.base.Sampling`, and each image is encoded once.

Within one gradient the vision tower runs once per unique image, whatever number of rows and micro-batches show it (and within a
whole step where nothing trains it: `encoding_once`): the features become leaves of the micro-batches' graphs, their gradients add
up, and one backward pass through the tower follows.
The model stays in eval mode: dropout would make the trainer's log-probs differ from the engine's.

Dimensions: W trained tokens of a micro-batch, S rows of image features, H hidden size, V vocabulary.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deskhand.config.trainer import PolicyConfig
from deskhand.models.forward import forward_decoder, log_softmax, unwrap
from deskhand.recorder import graph
from deskhand.trainer.batch import MicrobatchPlan, TrainBatch, check_sequence, plan_microbatches
from deskhand.trainer.lora import extract_lora, inject_lora, lora_disabled, merged_weights
from deskhand.trainer.master_weights import MasterWeights
from deskhand.trainer.vision_features import BatchImages, VisionFeatureCache
from deskhand.types import LoraWeights, PreparedImage


@dataclass(frozen=True, slots=True)
class TokenScores:
    """float32[W] in nats: log-probs of the trained tokens (with gradient) and the entropy where each was sampled (without)."""

    logprobs_W: Tensor
    entropies_W: Tensor
    hidden_WH: Tensor
    """What each token was sampled from (with gradient)."""


class Policy:
    """A checkpoint's model with the means to score recorded rows and to take gradients of functions of their log-probs.

    `banned_ids` must be those of the engine's `Sampling`; the image placeholder always belongs to them. `seed`: of the
    adapters' first values. `lock` is held while
    weights change and while they are copied.
    """

    def __init__(
        self, model: Any, config: PolicyConfig | None = None, banned_ids: Sequence[int] = (), seed: int = 0
    ) -> None:
        self.model = model.eval()
        self.config = config or PolicyConfig()
        self.banned_ids = tuple(sorted({*banned_ids, unwrap(model).config.image_token_id}))
        self.lock = threading.Lock()
        self.aside: Callable[[], AbstractContextManager[None]] = nullcontext
        """Entered while the model computes something else than the policy; an engine that shares it samples nothing meanwhile."""
        self._reference: Policy | None = None
        self._kept: VisionFeatureCache | None = None
        if not self.config.train_vision:
            unwrap(model).model.visual.requires_grad_(False)
        if self.config.lora is not None:
            torch.manual_seed(seed)
            inject_lora(unwrap(model), self.config.lora)
        self._masters = self._make_masters()

    def _make_masters(self) -> MasterWeights:
        return MasterWeights(
            {name: parameter for name, parameter in self.model.named_parameters() if parameter.requires_grad}
        )

    def parameters(self) -> dict[str, Tensor]:
        """What an optimizer is to update, by name, tied parameters once: the trained parameters, or the float32 masters of those
        that are kept in half precision. Gradients are at these."""
        return self._masters.tensors

    def write_back(self) -> None:
        """Bring the model up to its masters after an update; call it with the lock."""
        self._masters.sync_to_model()

    @property
    def is_rounded(self) -> bool:
        """Whether the weights differ from the checkpoint's from the start, because some are kept in 4 bits."""
        return self.config.lora is not None and self.config.lora.load_in_4bit

    def snapshot(self, device: str | None = None) -> dict[str, Tensor]:
        """A consistent copy of all weights under the checkpoint's own names, adapters merged in; on `device`, or where they are."""
        with self.lock:
            return merged_weights(unwrap(self.model), device)

    def adapter(self, *, tower: bool = False) -> LoraWeights | None:
        """A consistent copy of the adapter, where an engine that holds the model below it can take one: that model's weights are
        not rounded here, and the adapter is for the language model alone or (`tower`) for the vision tower, too."""
        config = self.config.lora
        if config is None or config.load_in_4bit or (config.vision and not tower):
            return None
        with self.lock:
            return extract_lora(unwrap(self.model), config)

    def check(self, sequence: graph.Sequence, images: Mapping[str, PreparedImage]) -> None:
        """Raise `RecordError` when a row cannot be trained on."""
        check_sequence(sequence, images, unwrap(self.model).config.image_token_id, self.banned_ids)

    def plan(self, sequences: Sequence[graph.Sequence], images: Mapping[str, PreparedImage]) -> MicrobatchPlan:
        """Micro-batches of the rows; raises `RecordError` when one is unsound."""
        for sequence in sequences:
            self.check(sequence, images)
        return plan_microbatches(sequences, images, self.model, self.config.max_tokens_per_mb)

    def logprobs(self, sequences: Sequence[graph.Sequence], images: Mapping[str, PreparedImage]) -> list[np.ndarray]:
        """Log-probs of the sampled tokens of each row, float32[sampled tokens], under the weights of now."""
        return self.each(sequences, images, lambda batch, hidden_WH: self.scores(batch, hidden_WH).logprobs_W)

    @torch.no_grad()
    def reference_logprobs(
        self, sequences: Sequence[graph.Sequence], images: Mapping[str, PreparedImage]
    ) -> list[np.ndarray]:
        """The same under the weights that the policy began with: adapters off, or the copy that `keep_reference` made."""
        if self._reference is not None:
            return self._reference.logprobs(sequences, images)
        if self.config.lora is None:
            raise ValueError("no reference was kept; call keep_reference before training")
        with self.aside(), lora_disabled(unwrap(self.model)):
            return self.logprobs(sequences, images)

    def freeze_reference(self) -> None:
        """Make `reference_logprobs` possible; call it before the first update. Without adapters it copies the whole model."""
        if self.config.lora is None:
            self._reference = self.copy(frozen=True)

    def copy(self, *, frozen: bool = False) -> Policy:
        """Another policy with equal weights and settings, trainable or not; they share no memory."""
        twin = copy.copy(self)
        twin.model, twin.lock, twin._reference, twin._kept = copy.deepcopy(self.model), threading.Lock(), None, None
        if frozen:
            twin.model.requires_grad_(False)
        twin._masters = twin._make_masters()
        return twin

    @contextmanager
    def cached_vision(self, images: Mapping[str, PreparedImage]) -> Iterator[None]:
        """Inside the block a vision tower that nothing trains encodes each of the images once, however often rows that show them
        are scored and gradients taken. One that learns does so for every gradient."""
        if not any(parameter.requires_grad for parameter in unwrap(self.model).model.visual.parameters()):
            self._kept = VisionFeatureCache(self.model, images, self.config.max_vision_patches_per_mb, gradients=False)
        try:
            yield
        finally:
            self._kept = None

    def _features(self, images: Mapping[str, PreparedImage], *, gradients: bool) -> VisionFeatureCache:
        return self._kept or VisionFeatureCache(
            self.model, images, self.config.max_vision_patches_per_mb, gradients=gradients
        )

    @torch.no_grad()
    def each(
        self,
        sequences: Sequence[graph.Sequence],
        images: Mapping[str, PreparedImage],
        function: Callable[[TrainBatch, Tensor], Tensor],
    ) -> list[np.ndarray]:
        """`function(batch, hidden_WH)` gives a number for each trained token of a micro-batch; returns those of each row."""
        work = self.plan(sequences, images)
        features = self._features(work.images, gradients=False)
        result = [np.empty(0, dtype=np.float32)] * len(sequences)
        for batch in work.batches:
            values_W, rows_W = function(batch, self.hidden(batch, features)).cpu().numpy(), batch.rows_W.cpu().numpy()
            for b, index in enumerate(batch.rows):
                result[index] = values_W[rows_W == b]
        return result

    def hidden(self, batch: TrainBatch, features: BatchImages) -> Tensor:
        """The hidden states [W, H] that each trained token of a micro-batch was sampled from."""
        inputs = batch.inputs
        shown_NH = features.of(inputs.image_hashes, inputs.feature_index_N)
        hidden_BTH = forward_decoder(
            self.model,
            inputs.input_ids_BT,
            inputs.position_ids_3BT,
            shown_NH,
            inputs.placeholder_index_N,
            recompute=self.config.gradient_checkpointing,
        )
        return hidden_BTH.reshape(-1, hidden_BTH.shape[-1]).index_select(0, batch.positions_W - 1)

    def scores(self, batch: TrainBatch, hidden_WH: Tensor) -> TokenScores:
        """Score the trained tokens of a micro-batch."""
        logprobs_WV = log_softmax(unwrap(self.model).lm_head(hidden_WH), batch.temperature, self.banned_ids)
        targets_W = batch.inputs.input_ids_BT.reshape(-1).index_select(0, batch.positions_W)
        with torch.no_grad():
            entropies_W = torch.special.entr(logprobs_WV.detach().exp()).sum(-1)
        return TokenScores(logprobs_WV.gather(1, targets_W.unsqueeze(1)).squeeze(1), entropies_W, hidden_WH)

    def accumulate(self, work: MicrobatchPlan, loss: Callable[[TrainBatch, TokenScores], Tensor]) -> None:
        """Add the gradient of the sum over micro-batches of `loss(batch, scores)` to the parameters' `.grad`."""
        self.accumulate_hidden(work, lambda batch, hidden_WH: loss(batch, self.scores(batch, hidden_WH)))

    def accumulate_hidden(self, work: MicrobatchPlan, loss: Callable[[TrainBatch, Tensor], Tensor]) -> None:
        """The same for a loss that is a function of the hidden states: `loss(batch, hidden_WH)`."""
        features = self._features(work.images, gradients=True)
        for batch in work.batches:
            loss(batch, self.hidden(batch, features)).backward()
        features.backward()

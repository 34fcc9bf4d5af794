"""The model that is trained. Invariant: its log-probs are those of `engines.base.Sampling`, and each image is encoded once.

Within one gradient the vision tower runs once per unique image, whatever number of rows and micro-batches show it: the
features become leaves of the micro-batches' graphs, their gradients add up, and one backward pass through the tower follows.
The model stays in eval mode: dropout would make the trainer's log-probs differ from the engine's.

Dimensions: W trained tokens of a micro-batch, S rows of image features, H hidden size, V vocabulary.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deskhand.engines.base import PreparedImage
from deskhand.models.forward import decode, log_softmax, unwrap
from deskhand.recorder import graph
from deskhand.training.adapter import inject_adapter, merged_weights
from deskhand.training.batch import Batch, Plan, check_sequence, plan
from deskhand.training.config import PolicyConfig
from deskhand.training.features import Features


@dataclass(frozen=True, slots=True)
class Scores:
    """float32[W] in nats: log-probs of the trained tokens (with gradient) and the entropy where each was sampled (without)."""

    logprobs_W: Tensor
    entropies_W: Tensor


class Policy:
    """A checkpoint's model with the means to score recorded rows and to take gradients of functions of their log-probs.

    `banned_ids` must be those of the engine's `Sampling`; the image placeholder always belongs to them. `lock` is held while
    weights change and while they are copied.
    """

    def __init__(self, model: Any, config: PolicyConfig | None = None, banned_ids: Sequence[int] = ()) -> None:
        self.model = model.eval()
        self.config = config or PolicyConfig()
        self.banned_ids = tuple(sorted({*banned_ids, unwrap(model).config.image_token_id}))
        self.lock = threading.Lock()
        if not self.config.train_vision:
            unwrap(model).model.visual.requires_grad_(False)
        if self.config.adapter is not None:
            inject_adapter(unwrap(model), self.config.adapter)

    def parameters(self) -> dict[str, Tensor]:
        """Trained parameters by name; tied ones once."""
        return {name: parameter for name, parameter in self.model.named_parameters() if parameter.requires_grad}

    def snapshot(self) -> dict[str, Tensor]:
        """A consistent copy of all weights under the checkpoint's own names, adapters merged in."""
        with self.lock:
            return merged_weights(unwrap(self.model))

    def check(self, sequence: graph.Sequence, images: Mapping[str, PreparedImage]) -> None:
        """Raise `RecordError` when a row cannot be trained on."""
        check_sequence(sequence, images, unwrap(self.model).config.image_token_id, self.banned_ids)

    def plan(self, sequences: Sequence[graph.Sequence], images: Mapping[str, PreparedImage]) -> Plan:
        """Micro-batches of the rows; raises `RecordError` when one is unsound."""
        for sequence in sequences:
            self.check(sequence, images)
        return plan(sequences, images, self.model, self.config.batch_tokens)

    @torch.no_grad()
    def logprobs(self, sequences: Sequence[graph.Sequence], images: Mapping[str, PreparedImage]) -> list[np.ndarray]:
        """Log-probs of the sampled tokens of each row, float32[sampled tokens], under the weights of now."""
        work = self.plan(sequences, images)
        features = Features(self.model, work.images, self.config.image_patches, gradients=False)
        result = [np.empty(0, dtype=np.float32)] * len(sequences)
        for batch in work.batches:
            logprobs_W, rows_W = self.scores(batch, features).logprobs_W.cpu().numpy(), batch.rows_W.cpu().numpy()
            for b, index in enumerate(batch.rows):
                result[index] = logprobs_W[rows_W == b]
        return result

    def scores(self, batch: Batch, features: Features) -> Scores:
        """Score the trained tokens of a micro-batch."""
        inputs = batch.inputs
        shown_NH = features.of(inputs.image_hashes, inputs.feature_index_N)
        hidden_BTH = decode(self.model, inputs.input_ids_BT, inputs.position_ids_3BT, shown_NH, inputs.placeholder_index_N)
        hidden_WH = hidden_BTH.reshape(-1, hidden_BTH.shape[-1]).index_select(0, batch.positions_W - 1)
        logprobs_WV = log_softmax(unwrap(self.model).lm_head(hidden_WH), batch.temperature, self.banned_ids)
        targets_W = inputs.input_ids_BT.reshape(-1).index_select(0, batch.positions_W)
        with torch.no_grad():
            entropies_W = torch.special.entr(logprobs_WV.detach().exp()).sum(-1)
        return Scores(logprobs_WV.gather(1, targets_W.unsqueeze(1)).squeeze(1), entropies_W)

    def accumulate(self, work: Plan, loss: Callable[[Batch, Scores], Tensor]) -> None:
        """Add the gradient of the sum over micro-batches of `loss(batch, scores)` to the parameters' `.grad`."""
        features = Features(self.model, work.images, self.config.image_patches, gradients=True)
        for batch in work.batches:
            loss(batch, self.scores(batch, features)).backward()
        features.backward()

"""Sampling of tokens from logits. Used by `hf.decode_batch`.

Everything is computed on the model's device, and one tensor with the results of all rows is copied to the host.
Sampling is by inversion: one uniform number per token from the request's own generator is compared with the cumulative
distribution. The rest of the batch affects only the last bits of the logits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from deskhand.models.transfer import read_back, to_device
from deskhand.types import Sampling


class Sampler:
    """Sampling settings of the rows of a batch, as tensors; rebuilt when the rows change."""

    def __init__(self, settings: Sequence[Sampling], vocabulary: int, device: torch.device) -> None:
        self._device = device
        self._top = max((setting.top_logprobs for setting in settings), default=0)
        temperatures = [setting.temperature or 1.0 for setting in settings]
        self._temperatures_B1 = None
        if any(temperature != 1.0 for temperature in temperatures):
            self._temperatures_B1 = to_device(torch.tensor(temperatures).unsqueeze(1), device)
        self._greedy_B = None
        if any(setting.temperature == 0 for setting in settings):
            self._greedy_B = to_device(torch.tensor([setting.temperature == 0 for setting in settings]), device)
        self._all_greedy = all(setting.temperature == 0 for setting in settings)
        self._top_p_B1 = None
        if any(setting.top_p < 1.0 for setting in settings):
            top_p_B = torch.tensor([setting.top_p for setting in settings], dtype=torch.float64)
            self._top_p_B1 = to_device(top_p_B.unsqueeze(1), device)
        self._banned_BV = None
        if any(setting.banned_ids for setting in settings):
            banned = torch.zeros(len(settings), vocabulary, dtype=torch.bool)
            for row, setting in zip(banned, settings, strict=True):
                row[list(setting.banned_ids)] = True
            self._banned_BV = to_device(banned, device)
        self._results = np.empty((0, 2))
        """Results of the last draw, float64[rows, 2 + 2K]: id, log-prob, the K most likely ids, and their log-probs."""

    def sample(
        self, logits_BV: Tensor, uniforms: Sequence[float], allowed: Mapping[int, np.ndarray] | None = None
    ) -> tuple[list[int], list[float]]:
        """Return one token and its log-prob for each row.

        Args:
            uniforms: One number in (0, 1] for each row.
            allowed: bool[V] of rows with a grammar; it affects the draw and not the log-probs.
        """
        logits_BV = logits_BV.float()
        if self._banned_BV is not None:
            logits_BV = logits_BV.masked_fill(self._banned_BV, float("-inf"))
        if self._temperatures_B1 is not None:
            logits_BV = logits_BV / self._temperatures_B1
        logprobs_BV = torch.log_softmax(logits_BV, dim=-1)
        open_BV = self._masked(logprobs_BV, allowed) if allowed else logprobs_BV
        if self._all_greedy:
            ids_B = open_BV.argmax(-1)
        else:
            ids_B = self._draw(open_BV, uniforms)
            if self._greedy_B is not None:
                ids_B = torch.where(self._greedy_B, open_BV.argmax(-1), ids_B)
        results = [ids_B.unsqueeze(1), logprobs_BV.gather(1, ids_B.unsqueeze(1))]
        if self._top:
            values_BK, ids_BK = logprobs_BV.topk(min(self._top, logprobs_BV.shape[1]))
            results += [ids_BK, values_BK]
        # float64 represents ids and float32 log-probs exactly.
        self._results = read_back(torch.cat([part.double() for part in results], dim=1))
        return self._results[:, 0].astype(np.int64).tolist(), self._results[:, 1].tolist()

    def most_likely(self, row: int, count: int) -> tuple[tuple[int, float], ...]:
        """Return (id, log-prob) of the `count` most likely ids of a row in the last draw, best first."""
        ids, values = np.split(self._results[row, 2:], 2)
        return tuple(zip(ids[:count].astype(np.int64).tolist(), values[:count].tolist(), strict=True))

    def _masked(self, logprobs_BV: Tensor, allowed: Mapping[int, np.ndarray]) -> Tensor:
        """Return the log-probs with disallowed ids removed, renormalized per row."""
        rows_R = to_device(torch.tensor(list(allowed)), self._device)
        closed_RV = to_device(torch.from_numpy(~np.stack(list(allowed.values()))), self._device)
        masked_RV = logprobs_BV.index_select(0, rows_R).masked_fill(closed_RV, float("-inf"))
        masked_BV = logprobs_BV.index_copy(0, rows_R, masked_RV)
        return masked_BV - masked_BV.logsumexp(-1, keepdim=True)

    def _draw(self, logprobs_BV: Tensor, uniforms: Sequence[float]) -> Tensor:
        probabilities_BV = logprobs_BV.double().exp()
        if self._top_p_B1 is not None:
            probabilities_BV = self._cut_tail(probabilities_BV, self._top_p_B1)
        cumulative_BV = probabilities_BV.cumsum(-1)
        uniforms_B1 = to_device(torch.tensor(uniforms, dtype=torch.float64).unsqueeze(1), self._device)
        reached_BV = (cumulative_BV >= uniforms_B1 * cumulative_BV[:, -1:]) & (probabilities_BV > 0)
        return reached_BV.to(torch.uint8).argmax(-1)

    @staticmethod
    def _cut_tail(probabilities_BV: Tensor, top_p_B1: Tensor) -> Tensor:
        """Keep the smallest set of most likely tokens whose probabilities sum to at least `top_p`."""
        sorted_BV, order_BV = probabilities_BV.sort(dim=-1, descending=True, stable=True)
        before_BV = sorted_BV.cumsum(-1) - sorted_BV
        kept_BV = sorted_BV * ((before_BV < top_p_B1) | (top_p_B1 >= 1.0))
        kept_BV[:, 0] = sorted_BV[:, 0]
        return torch.zeros_like(probabilities_BV).scatter(1, order_BV, kept_BV)

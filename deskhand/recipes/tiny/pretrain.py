"""Supervised pretraining of the bundled policy: training rows, batches and the learner.

Used by `recipes.tiny.build`; start with `PretrainRowBuilder` and `PretrainLearner`. A row contains several questions
about one screenshot (grounding), a whole demonstration, or a dictation. Rows of a batch have the same screen size, so
patches are stacked without padding.

Invariant: only tokens of the assistant are trained, in the format that `agents.desktop_agent` sends.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from deskhand.actions.formats import deskhand_json
from deskhand.actions.ops import Type
from deskhand.models.fast_layers import has_fast_bfloat16
from deskhand.models.tiny.architecture import MERGE, PATCH_PX
from deskhand.recipes.tiny.data_parallel import DataParallelGroup
from deskhand.recipes.tiny.demonstrations import MIDDLE, LabeledScreen, RecordedDemonstration, click_text
from deskhand.tasks.task import Rect
from deskhand.trainer.muon import MuonAdamW

PIECE_PX = 64


@dataclass
class PretrainRow:
    """Token `ids`, `targets` (1 for target tokens) of equal length, and `frames` (uint8[H, W, 3]) in order."""

    ids: list[int] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)
    frames: list[np.ndarray] = field(default_factory=list)


class PretrainRowBuilder:
    """Builder of rows in the agent's compact prompt style.

    Each user turn is a screenshot and the instruction, each reply an action.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.encode = lambda text: tokenizer.encode(text, add_special_tokens=False)
        token = tokenizer.convert_tokens_to_ids
        self.vision_start, self.vision_end = token("<|vision_start|>"), token("<|vision_end|>")
        self.image_pad, self.end = token("<|image_pad|>"), token("<|im_end|>")
        self.user = self.encode("<|im_start|>user\n")
        self.assistant = self.encode("<|im_start|>assistant\n")
        self.newline = self.encode("\n")

    def turn(self, row: PretrainRow, frame: np.ndarray | None, question: str, answer: str) -> None:
        """Append a user turn and a reply. If `frame` is None, the question is about the previous screenshot."""
        context = list(self.newline) if row.ids else []
        context += self.user
        if frame is not None:
            tokens = (frame.shape[0] // (PATCH_PX * MERGE)) * (frame.shape[1] // (PATCH_PX * MERGE))
            context += [self.vision_start] + [self.image_pad] * tokens + [self.vision_end]
            row.frames.append(frame)
        context += [*self.encode(question), self.end, *self.newline, *self.assistant]
        target = [*self.encode(answer), self.end]
        row.ids += context + target
        row.targets += [0] * len(context) + [1] * len(target)

    def grounding(self, scene: LabeledScreen, questions: int, rng: random.Random, stray: bool = False) -> PretrainRow:
        """Return a row of one screenshot and up to `questions` questions about different targets, in random order.

        If `stray`, the first reply is a click anywhere on the screen, as if the screenshot were ignored.
        """
        row = PretrainRow()
        height, width = scene.pixels.shape[:2]
        by_place: dict[Any, list[tuple[str, Any]]] = {}
        for question, rect in scene.questions:
            by_place.setdefault(rect, []).append((question, rect))
        places = rng.sample(list(by_place), min(questions, len(by_place)))
        chosen = [rng.choice(by_place[place]) for place in places]
        for k, (question, rect) in enumerate(chosen):
            place = Rect(0, 0, width, height) if stray and k == 0 else rect
            spread = 1.0 if stray and k == 0 else MIDDLE
            self.turn(row, scene.pixels if k == 0 else None, question, click_text(place, width, height, rng, spread))
        return row

    def demonstration(self, demonstration: RecordedDemonstration) -> PretrainRow:
        """Return a row of the whole episode."""
        row = PretrainRow()
        for frame, text in zip(demonstration.frames, demonstration.texts, strict=True):
            self.turn(row, frame, demonstration.instruction, text)
        return row

    def dictation(
        self, demonstration: RecordedDemonstration, instruction: str, typed: str, rng: random.Random
    ) -> PretrainRow:
        """Return a row of an episode that types text, with another instruction and small crops of its screenshots.

        Such rows train copying from the instruction at low cost. The first reply is not trained, because a crop does
        not show where to click.
        """
        row = PretrainRow()
        for number, (frame, text) in enumerate(zip(demonstration.frames, demonstration.texts, strict=True)):
            top, left = (rng.randrange(extent - PIECE_PX + 1) for extent in frame.shape[:2])
            piece = frame[top : top + PIECE_PX, left : left + PIECE_PX]
            types = any(isinstance(op, Type) for op in deskhand_json.parse(text))
            self.turn(row, piece, instruction, deskhand_json.emit([Type(typed)]) if types else text)
            if number == 0:
                row = without_first_reply(row)
        return row


def without_first_reply(row: PretrainRow) -> PretrainRow:
    """Return the row without its first reply as a target."""
    start = row.targets.index(1)
    end = start + row.targets[start:].index(0) if 0 in row.targets[start:] else len(row.targets)
    return PretrainRow(row.ids, [*row.targets[:start], *[0] * (end - start), *row.targets[end:]], row.frames)


def patches(frames: np.ndarray) -> torch.Tensor:
    """Convert uint8[N, H, W, 3] to float32[N * patches, 3 * 2 * patch * patch], as Qwen-VL's image processor does."""
    n, height, width, channels = frames.shape
    rows, columns = height // PATCH_PX, width // PATCH_PX
    pixels = torch.from_numpy(frames).float().div_(127.5).sub_(1.0)
    blocks = pixels.view(n, rows // MERGE, MERGE, PATCH_PX, columns // MERGE, MERGE, PATCH_PX, channels)
    blocks = blocks.permute(0, 1, 4, 2, 5, 7, 3, 6)  # n, row block, column block, row, column, channel, y, x
    flat = blocks.reshape(n * rows * columns, channels, 1, PATCH_PX, PATCH_PX)
    return flat.expand(-1, -1, 2, -1, -1).reshape(n * rows * columns, channels * 2 * PATCH_PX * PATCH_PX)


def batch_inputs(rows: list[PretrainRow], pad_id: int, image_pad: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Return model inputs and `target_BT` for rows, padded on the right."""
    longest = max(len(row.ids) for row in rows)
    ids_BT = torch.full((len(rows), longest), pad_id)
    target_BT = torch.zeros((len(rows), longest), dtype=torch.bool)
    attention_BT = torch.zeros((len(rows), longest), dtype=torch.long)
    for b, row in enumerate(rows):
        ids_BT[b, : len(row.ids)] = torch.tensor(row.ids)
        target_BT[b, : len(row.ids)] = torch.tensor(row.targets, dtype=torch.bool)
        attention_BT[b, : len(row.ids)] = 1
    frames = np.stack([frame for row in rows for frame in row.frames])
    height, width = frames.shape[1:3]
    grid = torch.tensor([[1, height // PATCH_PX, width // PATCH_PX]] * len(frames))
    inputs = {
        "input_ids": ids_BT,
        "attention_mask": attention_BT,
        "mm_token_type_ids": (ids_BT == image_pad).long(),
        "pixel_values": patches(frames),
        "image_grid_thw": grid,
    }
    return inputs, target_BT


def target_loss(model: Any, inputs: dict[str, torch.Tensor], target_BT: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy (nats) of target tokens. The output head runs only at their positions."""
    hidden_BTD = model.model(**inputs).last_hidden_state
    before_BT = target_BT[:, 1:]
    logits_ND = model.lm_head(hidden_BTD[:, :-1][before_BT]).float()
    return functional.cross_entropy(logits_ND, inputs["input_ids"][:, 1:][before_BT])


class PretrainLearner:
    """Learner of one process for `trainer.supervised.run_sft`.

    The optimizer is `trainer.muon`. Matrix products run in bfloat16 where the CPU has fast ones; weights and optimizer
    states are float32.
    """

    def __init__(
        self,
        model: Any,
        group: DataParallelGroup,
        *,
        pad_id: int,
        image_pad: int,
        matrix_rate: float,
        other_rate: float,
    ) -> None:
        self.model, self.group, self._pad_id, self._image_pad = model, group, pad_id, image_pad
        self._optimizer = MuonAdamW(dict(model.named_parameters()), other_rate, (0.9, 0.98), 0.05, matrix_rate)
        self._rates = [(group, group["lr"]) for group in self._optimizer.param_groups]

    def gradient(self, batch: list[PretrainRow]) -> float:
        """Compute gradients, averaged over all processes, and return the loss of this process."""
        inputs, target_BT = batch_inputs(batch, self._pad_id, self._image_pad)
        precision = torch.autocast("cpu", torch.bfloat16, enabled=has_fast_bfloat16())
        with precision, sdpa_kernel(SDPBackend.MATH):  # fastest kernel for rows this short
            loss = target_loss(self.model, inputs, target_BT)
        loss.backward()
        self.group.average_gradients(self.model.parameters())
        return float(loss.detach())

    def update(self, factor: float) -> None:
        for group, rate in self._rates:
            group["lr"] = rate * factor
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

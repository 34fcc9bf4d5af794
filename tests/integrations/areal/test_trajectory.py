"""Trajectories that break one rule are refused by that rule's cause; `tests/contract/areal` shows what AReaL does with
them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from deskhand.errors import RecordError
from deskhand.integrations.areal.tensors import samples_to_tensors
from deskhand.integrations.areal.trajectory import TrajectoryLimits, check_trajectory
from deskhand.recorder.graph import Sequence
from deskhand.trainer.batch import TrainingSample
from deskhand.types import ImageSpan, PreparedImage

IMAGE, OTHER = 150, 151
LIMITS = TrajectoryLimits(IMAGE, merge_size=2, banned_ids=(IMAGE, OTHER), max_tokens=40)


def image(name: str, rows: int, columns: int) -> PreparedImage:
    pixels = np.full((rows * columns, 4), len(name), np.float32)
    return PreparedImage(name, pixels, (1, rows, columns), rows * columns // 4, columns, rows)


IMAGES = {"a": image("a", 4, 4), "bb": image("bb", 4, 6), "ccc": image("ccc", 2, 4)}


def sample(episode: str, shown: list[str], replies: int = 2) -> TrainingSample:
    """A row that shows pictures, each before a reply of two tokens."""
    ids, marks, spans = [1, 2], [False, False], []
    for number in range(max(replies, len(shown))):
        if number < len(shown):
            count = IMAGES[shown[number]].tokens
            spans.append(ImageSpan(len(ids), count, shown[number]))
            ids += [IMAGE] * count + [3]
            marks += [False] * (count + 1)
        ids += [10 + number, 9]
        marks += [True, True]
    logprobs = [-0.5 if mark else 0.0 for mark in marks]
    versions = [3 if mark else -1 for mark in marks]
    row = Sequence(tuple(ids), tuple(marks), tuple(logprobs), tuple(versions), tuple(spans), ("x",))
    return TrainingSample(row, 0.5, episode)


def good() -> dict[str, Any]:
    """Three ragged rows; the last shows nothing."""
    return samples_to_tensors(
        [sample("e", ["a", "bb"]), sample("f", ["bb", "a", "ccc"]), sample("g", [], 3)], IMAGES, IMAGE
    )


def test_a_sound_trajectory_passes_and_holds_what_was_recorded():
    made = good()
    check_trajectory(made, LIMITS)
    first = sample("e", ["a", "bb"]).sequence
    length = len(first.token_ids)
    assert made["input_ids"][0, :length].tolist() == list(first.token_ids)
    assert made["loss_mask"][0, :length].bool().tolist() == list(first.loss_mask)
    assert made["rewards"].tolist() == [0.5] * 3
    assert torch.equal(made["multi_modal_input"][0]["pixel_values"][:16], torch.full((16, 4), 1.0))
    assert made["multi_modal_input"][1]["image_grid_thw"].tolist() == [[1, 4, 6], [1, 4, 4], [1, 2, 4]]
    assert made["multi_modal_input"][2] == {}


def test_weighed_episodes_of_a_group_count_the_same_whatever_their_length():
    rows = [sample("short", ["a"], 1), sample("long", ["a"], 4), sample("long", ["bb"], 3)]
    made = samples_to_tensors(rows, IMAGES, IMAGE, normalize_by_episode=True)
    worth = made["rewards"] * made["loss_mask"].sum(-1)
    assert float(worth[0]) == pytest.approx(float(worth[1] + worth[2]))
    assert float(worth.sum() / made["loss_mask"].sum()) == pytest.approx(0.5)


def spoilt(name: str) -> dict[str, Any]:  # noqa: C901
    made = good()
    ends = made["attention_mask"].sum(-1) - 1
    if name == "keys":
        del made["versions"]
    elif name == "shape":
        made["logprobs"] = made["logprobs"][:, :-1]
    elif name == "dtype":
        made["input_ids"] = made["input_ids"].int()
    elif name == "padding":
        made["attention_mask"][0, 0] = False
    elif name == "last_token":
        made["loss_mask"][0, ends[0]] = 0
    elif name == "first_token":
        made["loss_mask"][1, 0] = 1
    elif name == "nothing_sampled":
        made["loss_mask"][2] = 0
    elif name == "pictures":
        made["multi_modal_input"].pop()
    elif name == "placeholders":
        made["multi_modal_input"][:2] = made["multi_modal_input"][1::-1]
    elif name == "types":
        made["mm_token_type_ids"][0, 2] = 0
    elif name == "banned_id":
        made["input_ids"][0, ends[0]] = OTHER
    elif name == "logprobs":
        made["logprobs"][0, ends[0]] = float("nan")
    elif name == "versions":
        made["versions"][0, ends[0]] = -1
    elif name == "reward":
        made["rewards"][0] = float("inf")
    elif name == "no_picture":
        made = samples_to_tensors([sample("g", [], 3)], IMAGES, IMAGE)
    return made


CAUSES = [
    "keys", "shape", "dtype", "padding", "last_token", "first_token", "nothing_sampled", "pictures", "placeholders",
    "types", "banned_id", "logprobs", "versions", "reward", "no_picture",
]  # fmt: skip


@pytest.mark.parametrize("cause", CAUSES)
def test_a_broken_rule_is_refused_by_its_cause(cause):
    with pytest.raises(RecordError) as caught:
        check_trajectory(spoilt(cause), LIMITS)
    assert caught.value.cause == cause


def test_a_row_above_the_budget_is_refused():
    with pytest.raises(RecordError, match="too_long"):
        check_trajectory(good(), TrajectoryLimits(IMAGE, 2, (), max_tokens=20))


def test_images_of_other_sizes_with_the_same_total_are_refused():
    made = good()
    grids = made["multi_modal_input"][0]["image_grid_thw"] = made["multi_modal_input"][0]["image_grid_thw"].clone()
    grids[0], grids[1] = grids[1].clone(), grids[0].clone()
    with pytest.raises(RecordError, match="placeholders"):
        check_trajectory(made, LIMITS)


def test_text_alone_passes_if_the_model_has_no_vision():
    made = samples_to_tensors([sample("g", [], 3)], IMAGES, IMAGE, has_vision=False)
    assert "multi_modal_input" not in made
    check_trajectory(made, TrajectoryLimits(IMAGE, 2, needs_picture=False))
    with pytest.raises(RecordError, match="keys"):
        check_trajectory(good(), TrajectoryLimits(IMAGE, 2, needs_picture=False))

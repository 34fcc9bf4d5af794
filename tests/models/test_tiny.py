"""The bundled policy's tokenizer, architecture and training rows."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deskhand.actions.formats import deskhand_json
from deskhand.actions.ops import Click, to_screen_px
from deskhand.models.load import load
from deskhand.models.tiny import architecture
from deskhand.models.tiny.tokenizer import NUMBERS, build_tokenizer
from deskhand.recipes.tiny import build, demonstrations, pretrain
from deskhand.recipes.tiny.data_parallel import DataParallelGroup
from deskhand.recorder.messages import ImagePart, Message
from deskhand.recorder.renderer import ChatRenderer
from deskhand.tasks.task import Rect
from deskhand.trainer.supervised import Schedule, run_sft
from deskhand.types import PreparedImage

TOKENIZER = build_tokenizer(build.corpus(build.BuildPlan().families))


@given(st.text())
@settings(max_examples=200)
def test_any_text_survives_the_tokeniser(text: str) -> None:
    ids = TOKENIZER.encode(text, add_special_tokens=False)
    assert TOKENIZER.decode(ids, clean_up_tokenization_spaces=False) == text


def test_a_click_is_six_tokens_with_its_end() -> None:
    ids = TOKENIZER.encode('{"op":"click","x":520,"y":1000}<|im_end|>', add_special_tokens=False)
    assert [TOKENIZER.decode([i]) for i in ids] == ['{"op":"click","x":', "520", ',"y":', "1000", "}", "<|im_end|>"]


def test_near_coordinates_start_with_similar_embeddings() -> None:
    table = architecture.build_model(TOKENIZER).get_input_embeddings().weight.detach()
    ids = TOKENIZER.convert_tokens_to_ids(list(NUMBERS))

    def alike(a: int, b: int) -> float:
        return float(torch.cosine_similarity(table[ids[a]], table[ids[b]], dim=0))

    assert alike(500, 510) > alike(500, 700) + 0.3


def test_the_same_seed_builds_the_same_weights() -> None:
    one, two = (architecture.build_model(TOKENIZER, 3).state_dict() for _ in range(2))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert sum(parameter.numel() for parameter in architecture.build_model(TOKENIZER).parameters()) < 6_000_000


@pytest.mark.parametrize(("width", "height"), [(256, 192), (320, 192), (320, 256)])
def test_patches_are_those_of_the_checkpoints_image_processor(tmp_path, width: int, height: int) -> None:
    architecture.save(tmp_path, architecture.build_model(TOKENIZER), TOKENIZER)
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    expected = load(str(tmp_path)).image_processor(images=[pixels], return_tensors="pt")
    assert expected["image_grid_thw"].tolist() == [[1, height // 16, width // 16]]
    assert torch.allclose(pretrain.patches(pixels[None]), expected["pixel_values"], atol=1e-6)


def test_rows_are_what_the_recorder_renders_for_the_same_conversation(tmp_path) -> None:
    """What is trained is what is asked: token for token, image for image."""
    architecture.save(tmp_path, architecture.build_model(TOKENIZER), TOKENIZER)
    renderer = ChatRenderer(load(str(tmp_path)).tokenizer)
    frame = np.zeros((192, 256, 3), np.uint8)
    question, answers = "Close the red terminal", ['{"op":"click","x":520,"y":300}', '{"op":"done"}']
    demonstration = demonstrations.RecordedDemonstration("terminal_close", question, [frame, frame], answers, "", 1.0)
    row = pretrain.PretrainRowBuilder(TOKENIZER).demonstration(demonstration)
    user = Message("user", (ImagePart("a"), question))
    messages = (user, Message("assistant", (answers[0],)), user)
    prompt = renderer.render(messages, {"a": PreparedImage("a", None, (1, 12, 16), 48, 256, 192)})
    assert tuple(row.ids[: len(prompt.token_ids)]) == prompt.token_ids
    targets = [token for token, is_target in zip(row.ids, row.targets, strict=True) if is_target]
    assert TOKENIZER.decode(targets) == f"{answers[0]}<|im_end|>{answers[1]}<|im_end|>"


@given(st.integers(0, 300), st.integers(0, 240), st.integers(12, 60), st.integers(10, 40), st.integers())
@settings(max_examples=200)
def test_a_target_click_lands_inside_its_rectangle(left: int, top: int, width: int, height: int, seed: int) -> None:
    rect = Rect(left, top, min(left + width, 320), min(top + height, 256))
    if rect.right - rect.left < 12 or rect.bottom - rect.top < 10:
        return
    (click,) = deskhand_json.parse(demonstrations.click_text(rect, 320, 256, random.Random(seed)))
    assert isinstance(click, Click)
    assert click.point is not None
    assert rect.contains(*to_screen_px(click.point, 320, 256))


def test_fitting_lowers_the_loss_on_a_screen_that_is_seen_again_and_again(tmp_path) -> None:
    model, writer, rng = architecture.build_model(TOKENIZER), pretrain.PretrainRowBuilder(TOKENIZER), random.Random(0)
    pixels = np.full((192, 256, 3), 90, np.uint8)
    pixels[40:90, 60:130] = (200, 30, 30)
    scene = demonstrations.LabeledScreen("terminal_run", pixels, [("Close the red terminal", Rect(60, 40, 130, 90))])
    inputs, target_BT = pretrain.batch_inputs(
        [writer.grounding(scene, 1, rng)], TOKENIZER.pad_token_id, writer.image_pad
    )
    before = float(pretrain.target_loss(model, inputs, target_BT).detach())
    group = DataParallelGroup(0, 1, tmp_path / "meeting")
    ids = {"pad_id": TOKENIZER.pad_token_id, "image_pad": writer.image_pad}
    learner = pretrain.PretrainLearner(model, group, matrix_rate=4e-3, other_rate=3e-3, **ids)
    run_sft(
        learner, ([writer.grounding(scene, 1, rng)] for _ in itertools.count()), Schedule(steps=30), clock=group.seconds
    )
    assert float(pretrain.target_loss(model, inputs, target_BT).detach()) < 0.5 * before


def test_dictation_teaches_to_type_the_instructions_words_and_nothing_of_the_first_click() -> None:
    frame = np.zeros((192, 256, 3), np.uint8)
    texts = ['{"op":"click","x":520,"y":300}', '{"op":"type","text":"touch apple\\n"}', '{"op":"done"}']
    demonstration = demonstrations.RecordedDemonstration(
        "terminal_run", "In the red terminal run touch apple", [frame] * 3, texts, "", 1.0
    )
    row = pretrain.PretrainRowBuilder(TOKENIZER).dictation(
        demonstration, "In the blue terminal run touch melon", "touch melon\n", random.Random(0)
    )
    targets = [token for token, is_target in zip(row.ids, row.targets, strict=True) if is_target]
    assert TOKENIZER.decode(targets) == '{"op":"type","text":"touch melon\\n"}<|im_end|>{"op":"done"}<|im_end|>'
    assert {piece.shape for piece in row.frames} == {(64, 64, 3)}

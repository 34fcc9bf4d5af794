"""The forward pass equals transformers', in values and gradients, for packed rows with repeated images."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_models import END, IMAGE, MERGE, START, Conversation, build, hidden_states, image

from deskhand.models import forward
from deskhand.models.fast_layers import PatchProjection, embed_patches_by_product
from deskhand.types import ImageSpan, PreparedImage, Prompt


@pytest.fixture(params=["qwen3_vl", "qwen3_vl_moe", "qwen2_5_vl", "qwen3_5", "qwen3_5_moe"])
def model(request: pytest.FixtureRequest) -> Any:
    return build(request.param)


def batch_of_rows() -> tuple[list[Prompt], dict[str, PreparedImage]]:
    """Rows of different lengths; two share their first images, one has none."""
    talk = Conversation(2)
    rows = [talk.observe() for _ in range(3)]
    other = Conversation(9)
    rows += [Prompt((5, 6, 7, 8, 9)), other.observe()]
    return rows, {**talk.images, **other.images}


def plain_logits(model: Any, row: Prompt, images: dict[str, PreparedImage]) -> torch.Tensor:
    ids = torch.tensor([row.token_ids])
    shown = [images[span.sha256] for span in row.spans]
    pixels: dict[str, Any] = {}
    if shown:
        pixels = {
            "pixel_values": torch.cat([torch.from_numpy(image.pixel_values) for image in shown]),
            "image_grid_thw": torch.tensor([image.grid_thw for image in shown]),
            "mm_token_type_ids": (ids == IMAGE).int(),
        }
    model.model.rope_deltas = None
    return model(input_ids=ids, attention_mask=torch.ones_like(ids), **pixels).logits[0]


def test_hidden_states_and_gradients_equal_those_of_transformers(model: Any) -> None:
    rows, images = batch_of_rows()
    weights = [
        torch.randn(len(row.token_ids), generator=torch.Generator().manual_seed(i)) for i, row in enumerate(rows)
    ]
    inputs = forward.collate(rows, images, model)
    assert inputs.image_hashes == tuple(dict.fromkeys(span.sha256 for row in rows for span in row.spans))

    def gradients(losses: list[torch.Tensor]) -> torch.Tensor:
        model.zero_grad()
        torch.stack(losses).sum().backward()
        return torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])

    expected = [plain_logits(model, row, images) for row in rows]
    reference = gradients([(logits[:, 3] * weight).sum() for logits, weight in zip(expected, weights, strict=True)])
    found = [model.lm_head(row) for row in hidden_states(model, rows, images)]
    largest = max(float((one - two).detach().abs().max()) for one, two in zip(found, expected, strict=True))
    print(f"{model.config.model_type}: packed rows, max difference of logits {largest:.2e}")
    for logits, want in zip(found, expected, strict=True):
        torch.testing.assert_close(logits, want, atol=1e-4, rtol=1e-4)
    ours = gradients([(logits[:, 3] * weight).sum() for logits, weight in zip(found, weights, strict=True)])
    assert torch.nn.functional.cosine_similarity(ours, reference, dim=0) > 0.999999


def test_log_probs_leave_out_banned_ids_and_divide_by_the_temperature() -> None:
    logits_WV = torch.tensor([[1.0, 2.0, 3.0, 4.0], [4.0, 3.0, 2.0, 1.0]])
    found = forward.log_softmax(logits_WV, 0.5, (3,))
    assert found[:, 3].tolist() == [float("-inf")] * 2
    torch.testing.assert_close(found[:, :3], torch.log_softmax(logits_WV[:, :3] / 0.5, -1))
    torch.testing.assert_close(forward.log_softmax(logits_WV, 0.0, ()), torch.log_softmax(logits_WV, -1))


def test_pixels_matter(model: Any) -> None:
    rows, images = batch_of_rows()
    noise = {
        name: PreparedImage(
            name, image(99, *[side // MERGE for side in shown.grid_thw[1:]]).pixel_values, *shown_rest(shown)
        )
        for name, shown in images.items()
    }
    seen, blind = hidden_states(model, rows, images), hidden_states(model, rows, noise)
    assert (seen[0][-1] - blind[0][-1]).abs().max() > 0.1
    torch.testing.assert_close(seen[3], blind[3], atol=1e-5, rtol=1e-5)


def shown_rest(shown: PreparedImage) -> tuple[Any, ...]:
    return shown.grid_thw, shown.tokens, shown.width, shown.height


layouts = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 7), st.integers(1, 7)), min_size=1, max_size=5)
MODELS = {family: build(family) for family in ("qwen3_vl", "qwen3_vl_moe", "qwen2_5_vl", "qwen3_5", "qwen3_5_moe")}


@given(layouts, st.integers(0, 9), st.sampled_from(sorted(MODELS)))
@settings(deadline=None, max_examples=60)
def test_positions_equal_those_of_transformers(layout: list[tuple[int, int, int]], tail: int, family: str) -> None:
    ids: list[int] = []
    spans: list[ImageSpan] = []
    images: dict[str, PreparedImage] = {}
    for index, (text, height, width) in enumerate(layout):
        ids += [1] * text + [START]
        name = f"{index:064x}"
        images[name] = PreparedImage(name, None, (1, height * MERGE, width * MERGE), height * width, 0, 0)
        spans.append(ImageSpan(len(ids), height * width, name))
        ids += [IMAGE] * (height * width) + [END]
    ids += [1] * tail
    expected, delta = MODELS[family].model.get_rope_index(
        torch.tensor([ids]),
        mm_token_type_ids=(torch.tensor([ids]) == IMAGE).int(),
        image_grid_thw=torch.tensor([shown.grid_thw for shown in images.values()]),
    )
    found, following = forward.positions(len(ids), spans, images, MERGE)
    assert found.tolist() == expected[:, 0].tolist()
    assert following == len(ids) + int(delta)


def test_patches_by_product_equal_the_convolution_and_keep_its_names(model: Any) -> None:
    shown = image(4, 3, 5)
    pixels, grid = forward.stack_images([shown], "cpu")
    before, names = forward.encode_images(model, pixels, grid), list(model.state_dict())
    embed_patches_by_product(model)
    assert isinstance(model.model.visual.patch_embed.proj, PatchProjection)
    assert list(model.state_dict()) == names
    for found, expected in zip(forward.encode_images(model, pixels, grid), before, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)

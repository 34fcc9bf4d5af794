"""The policy's log-probs and gradients: equal to a plain Hugging Face forward pass, however rows are packed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_policy import BANNED, IMAGE, World, encoded_images, play, screenshot

from deskhand.recorder.graph import Sequence
from deskhand.trainer import policy as policy_module


def rows(world, merge=True):
    return [sequence for graph in world.graphs for sequence in graph.sequences(merge)]


def plain_logprobs(model, sequence, images):
    """The sampled tokens' log-probs by the checkpoint's own forward pass, one row, no batch."""
    ids = torch.tensor([sequence.token_ids])
    shown = [images[span.sha256] for span in sequence.spans]
    logits = (
        model(
            input_ids=ids,
            pixel_values=torch.cat([torch.from_numpy(image.pixel_values) for image in shown]),
            image_grid_thw=torch.tensor([image.grid_thw for image in shown]),
            mm_token_type_ids=(ids == IMAGE).int(),
        )
        .logits[0]
        .float()
    )
    logits[:, list(BANNED)] = -float("inf")
    logprobs = torch.log_softmax(logits / sequence.temperature, -1)
    where = np.flatnonzero(sequence.loss_mask)
    return logprobs[where - 1, ids[0, where]]


def gradient(policy, sequences, images, function=lambda logprobs_W: logprobs_W.sum()):
    """Gradient of a function of the log-probs, as one vector."""
    policy.model.zero_grad(set_to_none=True)
    policy.accumulate(policy.plan(sequences, images), lambda batch, scores: function(scores.logprobs_W))
    return gradient_of(policy)


def gradient_of(policy):
    gradients = [parameter.grad for parameter in policy.parameters().values()]
    return torch.cat([gradient.flatten() for gradient in gradients if gradient is not None])


def test_log_probs_equal_a_plain_forward_pass_and_what_was_sampled(policy, world):
    sequences = rows(world)
    assert len(sequences) > len(world.graphs)
    for sequence, logprobs in zip(sequences, policy.logprobs(sequences, world.images), strict=True):
        with torch.no_grad():
            plain = plain_logprobs(policy.model, sequence, world.images)
        np.testing.assert_allclose(logprobs, plain.numpy(), atol=2e-5)
        np.testing.assert_allclose(logprobs, np.array(sequence.logprobs)[list(sequence.loss_mask)], atol=2e-5)


def test_temperature_and_banned_ids_are_those_of_sampling(policy, model):
    hot = World()
    play(model, hot, 11, 3, temperature=1.7)
    play(model, hot, 12, 2, temperature=0.6)
    sequences = rows(hot)
    for sequence, logprobs in zip(sequences, policy.logprobs(sequences, hot.images), strict=True):
        np.testing.assert_allclose(logprobs, np.array(sequence.logprobs)[list(sequence.loss_mask)], atol=2e-5)


@pytest.mark.parametrize(
    "settings",
    [
        {"max_tokens_per_mb": 1},
        {"max_tokens_per_mb": 60, "max_vision_patches_per_mb": 24},
        {"max_vision_patches_per_mb": 1},
    ],
)
def test_the_gradient_does_not_depend_on_how_much_is_computed_at_a_time(make_policy, world, settings):
    whole = gradient(make_policy(), rows(world), world.images)
    parts = gradient(make_policy(**settings), rows(world), world.images)
    assert (whole - parts).norm() / whole.norm() < 1e-5


@pytest.mark.parametrize("recompute", [False, True])
def test_logits_in_parts_give_the_same_and_few_exist_at_once(make_policy, world, monkeypatch, recompute):
    def scored(policy, heights):
        policy.model.lm_head.register_forward_hook(lambda _, given, out: heights.append(len(out)))
        found = []

        def loss(batch, scores):
            found.append((scores.logprobs_W.detach(), scores.entropies_W.detach()))
            return scores.logprobs_W.sum() + (scores.entropies_W**2).sum()

        policy.accumulate(policy.plan(rows(world), world.images), loss, entropy_gradient=True)
        return [torch.cat(column) for column in zip(*found, strict=True)], gradient_of(policy)

    whole, parts = list[int](), list[int]()
    (logprobs, entropies), expected = scored(make_policy(gradient_checkpointing=recompute), whole)
    vocabulary = make_policy().model.config.text_config.vocab_size
    monkeypatch.setattr(policy_module, "MAX_LOGIT_BYTES", 3 * 4 * vocabulary)
    policy = make_policy(gradient_checkpointing=recompute)
    (found_logprobs, found_entropies), found = scored(policy, parts)
    assert max(whole) > 3 >= max(parts)
    assert sum(parts) == 2 * sum(whole), "once forward, and once more in the backward pass"
    torch.testing.assert_close(found_logprobs, logprobs, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(found_entropies, entropies, atol=1e-6, rtol=1e-6)
    assert (found - expected).norm() / expected.norm() < 1e-6
    parts.clear()
    policy.logprobs(rows(world), world.images)
    assert (max(parts), sum(parts)) == (3, sum(whole))


def test_the_gradient_is_that_of_a_plain_backward_pass(policy, world):
    sequences = rows(world)
    ours = gradient(policy, sequences, world.images)
    policy.model.zero_grad(set_to_none=True)
    sum(plain_logprobs(policy.model, sequence, world.images).sum() for sequence in sequences).backward()
    plain = gradient_of(policy)
    assert (ours - plain).norm() / plain.norm() < 1e-4


def test_the_vision_tower_gets_a_gradient_and_encodes_each_image_once(policy, world):
    calls, tower = encoded_images(policy), policy.model.model.visual
    gradient(policy, rows(world, merge=False), world.images)
    shown = {span.sha256 for sequence in rows(world) for span in sequence.spans}
    assert sum(calls) == len(shown) == len(world.images)
    assert all(parameter.grad.abs().sum() > 0 for parameter in tower.parameters())


def test_other_images_change_the_log_probs(policy, world):
    sequences = rows(world)
    swapped = {
        sha256: screenshot(1000 + number, image.grid_thw[1], image.grid_thw[2])
        for number, (sha256, image) in enumerate(sorted(world.images.items()))
    }
    before = np.concatenate(policy.logprobs(sequences, world.images))
    after = np.concatenate(policy.logprobs(sequences, swapped))
    assert np.abs(before - after).mean() > 0.1


def test_rows_without_images_train_too(policy):
    row = Sequence((1, 9, 10, 11), (False, False, True, True), (0.0, 0.0, -1.0, -1.0), (-1, -1, 0, 0), (), ())
    assert policy.logprobs([row], {})[0].shape == (2,)
    assert gradient(policy, [row], {}).abs().sum() > 0


def test_a_frozen_tower_gets_no_gradient_and_the_rest_is_unchanged(make_policy, world):
    free, frozen = make_policy(), make_policy(train_vision=False)
    for policy in (free, frozen):
        gradient(policy, rows(world), world.images)
    assert all(parameter.grad is None for parameter in frozen.model.model.visual.parameters())
    for name, parameter in frozen.parameters().items():
        torch.testing.assert_close(parameter.grad, free.parameters()[name].grad)

"""AReaL's own executor, remote engine and FSDP actor on our episodes: what it recomputes is what was recorded, what it
trains is what our trainer trains, and what our validator refuses does damage there."""

from __future__ import annotations

from typing import Any

import areal_workflows
import pytest
from areal_jobs import FAMILIES

SILENT = {"shape", "last_token", "first_token", "placeholders", "types", "logprobs", "versions", "reward"}
"""Rules whose breach AReaL does not notice."""
LOUD = {"keys", "dtype", "padding", "pictures", "banned_id", "no_picture", "too_long", "nothing_sampled"}
"""Rules whose breach fails a whole step."""


@pytest.fixture(scope="module", params=FAMILIES)
def trained(request, found) -> dict[str, Any]:
    """What `training_probe.py` found for a family, and the checkpoint."""
    return found[request.param].result()


def test_episodes_are_long_forked_ragged_and_one_member_of_a_group_is_dropped(trained):
    assert trained["turns"].count(areal_workflows.TURNS) == 12
    assert trained["outcomes"].count("Errored") == 4
    assert all(rows == 6 for rows, _ in trained["rows"]), "two rows for each of three members"
    lengths = {len(sample.sequence.token_ids) for sample in trained["samples"]}
    assert len(lengths) >= 2
    assert min(len(sample.sequence.spans) for sample in trained["samples"]) >= 1


def test_what_areal_recomputes_is_what_was_recorded(trained):
    assert trained["gap"] < 1e-5


def test_without_our_attention_packed_rows_see_each_other(trained):
    assert trained["leaking_gap"] > 1e-3


def test_its_transformers_misplaces_images_of_one_family_unless_patched(trained):
    assert trained["patched"] == [True, False]
    assert (trained["misplaced_gap"] > 1e-2) == (trained["family"] == "qwen2_5_vl")


def test_areal_updates_and_its_losses_are_those_of_our_trainer(trained):
    from deskhand.config.trainer import TrainerConfig
    from deskhand.models.load import load
    from deskhand.trainer.policy import Policy
    from deskhand.trainer.trainer import Trainer

    samples = _weighed(trained["samples"])
    tokens = sum(sum(sample.sequence.loss_mask) for sample in samples)
    episodes = len({sample.episode_id for sample in samples})
    config = TrainerConfig(
        algorithm="dr_grpo", loss_divisor=tokens / episodes, learning_rate=1e-3, weight_decay=0.01, beta2=0.999,
        importance_weight_cap=5.0, max_grad_norm=1.0, warmup_steps=0,
    )  # fmt: skip
    trainer = Trainer(Policy(load(str(trained["checkpoint"])).model), config)
    for theirs in trained["updates"]:
        ours = trainer.step(samples, trained["images"])
        assert theirs["ppo_actor/update/update_successful"] == 1.0
        assert ours.loss == pytest.approx(theirs["ppo_actor/update/actor_loss/avg"], abs=1e-4)
        assert ours.grad_norm == pytest.approx(theirs["ppo_actor/update/grad_norm"], rel=1e-2)


def _weighed(samples: list[Any]) -> list[Any]:
    """With the advantages that `areal.tensors` gave the rows: each group's episodes count the same. They are no group
    of our trainer, which refuses a group whose advantages do not sum to 0: with episodes of unequal length these do
    not."""
    from dataclasses import replace

    from deskhand.integrations.areal.tensors import _scales

    groups: dict[str, list[Any]] = {}
    for sample in samples:
        groups.setdefault(sample.episode_id.rsplit("-", 1)[0], []).append(sample)
    return [
        replace(sample, advantage=sample.advantage * scale, group_id="")
        for group in groups.values()
        for sample, scale in zip(group, _scales(group), strict=True)
    ]


@pytest.mark.parametrize("cause", sorted(SILENT))
def test_areal_does_not_notice(trained, cause):
    assert isinstance(trained["damage"][cause], float), trained["damage"][cause]
    assert trained["damage"][cause] > 1e-3


@pytest.mark.parametrize("cause", sorted(LOUD))
def test_areal_loses_the_step(trained, cause):
    assert isinstance(trained["damage"][cause], str), trained["damage"][cause]


def test_every_rule_has_its_damage():
    import deskhand.integrations.areal.trajectory as module

    named = {line.split("`")[1] for line in (module.__doc__ or "").splitlines() if line.startswith("| `")}
    assert named == SILENT | LOUD

"""`deskhand train --trainer areal` in AReaL's online mode with `deskhand areal run-online` beside it: sessions that
were played outside of AReaL are trained by its own PPOTrainer, and the next are sampled by the new weights."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from areal_jobs import ONLINE_STEPS


@pytest.fixture(scope="module")
def online(found) -> dict[str, Any]:
    return found["online"].result()


@pytest.fixture(scope="module")
def steps(online) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (online["folder"] / "areal_metrics.jsonl").read_text().splitlines()]


def test_every_step_trains_on_what_was_played(online, steps):
    said = re.fullmatch(r"episodes: (\d+) scored, mean reward ([\d.]+); \d+ errored", online["said"])
    assert said is not None, online["said"]
    assert int(said[1]) >= 2 * ONLINE_STEPS
    assert 0 < float(said[2]) < 1
    assert [line["step"] for line in steps] == list(range(1, ONLINE_STEPS + 1))
    assert all(line["ppo_actor/update/update_successful"] == 1.0 for line in steps)
    assert all(line["ppo_actor/update/grad_norm"] > 0 for line in steps)


def test_new_weights_are_sampled_from_and_what_they_sampled_is_recomputed(online, steps):
    """No step trains on what was sampled before the one before it, so what is recomputed is by the same weights."""
    assert len(online["taken"]) == ONLINE_STEPS
    assert all(changed > 0 for changed in online["taken"])
    assert all(line["ppo_actor/update/behave_imp_weight/avg"] == pytest.approx(1.0, abs=1e-3) for line in steps)


def test_the_weights_of_the_end_are_a_checkpoint(online):
    """On a processor, where AReaL's own way to save one fails."""
    assert online["same"]
    assert {path.name for path in online["saved"].iterdir()} >= {"config.json", "tokenizer.json"}

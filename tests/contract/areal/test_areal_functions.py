"""Advantages, the clipped objective, the value loss and estimates of divergence against AReaL's own functions, where
both compute the same."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from environments import python_of

from deskhand.algorithms.grpo import group_advantages
from deskhand.algorithms.objective import clipped_loss, kl_estimate
from deskhand.algorithms.ppo import gae, value_loss, whiten

CASES = {
    "plain": {"eps_clip": 0.2},
    "clip higher": {"eps_clip": 0.2, "eps_clip_higher": 0.28},
    "dual clip": {"eps_clip": 0.2, "eps_clip_higher": 0.28, "c_clip": 1.5},
    "capped, dropped": {
        "eps_clip": 0.2,
        "rejection": {"level": "token", "action": "mask", "metric": "ratio", "upper": 1.5},
    },
    "capped, truncated": {
        "eps_clip": 0.2,
        "rejection": {"level": "token", "action": "clamp", "metric": "ratio", "upper": 1.5},
    },
    "sequence ratios": {"eps_clip": 3e-2, "eps_clip_higher": 4e-2, "importance_sampling_level": "sequence"},
}
CREDITS = {
    "generalized": {"discount": 0.97, "decay": 0.9, "group": 0, "whitened": False, "critic": True},
    "undiscounted": {"discount": 1.0, "decay": 1.0, "group": 0, "whitened": False, "critic": True},
    "whitened": {"discount": 0.99, "decay": 0.95, "group": 0, "whitened": True, "critic": True},
    "of groups": {"discount": 1.0, "decay": 1.0, "group": 4, "whitened": False, "critic": False},
}


@pytest.fixture(scope="module")
def python() -> Path:
    return python_of("areal-functions", "DESKHAND_TEST_AREAL")


def arrays() -> dict[str, np.ndarray]:
    """Five rows of up to twelve tokens; every bound bites somewhere. An advantage is that of its row."""
    random = np.random.default_rng(5)
    shape = (5, 12)
    mask = np.arange(12) < random.integers(4, 13, 5)[:, None]
    proximal = -np.abs(random.normal(1, 1, shape))
    given = {
        "logprobs": proximal + random.normal(0, 0.3, shape),
        "proximal": proximal,
        "old": proximal + random.normal(0, 0.6, shape),
        "advantages": np.repeat(random.normal(0, 1, (5, 1)), 12, axis=1),
        "value": random.normal(0.5, 0.4, shape),
        "old_value": random.normal(0.5, 0.4, shape),
        "target": random.normal(0.5, 0.4, shape),
    }
    # eight rows in groups of four; replies with what was observed between them; AReaL wants a row to end with a sampled
    # token
    sampled = np.zeros((8, 16), dtype=bool)
    for row in sampled:
        for start in range(2, int(random.integers(5, 12)), 4):
            row[start : start + int(random.integers(1, 4))] = True
    given |= {"rewards": random.random(8).round(1), "values": random.normal(0.5, 0.3, (8, 16))}
    return {name: value.astype(np.float32) for name, value in given.items()} | {"mask": mask, "sampled": sampled}


@pytest.fixture(scope="module")
def theirs(python, tmp_path_factory) -> dict[str, np.ndarray]:
    """What AReaL says, case by case."""
    folder = tmp_path_factory.mktemp("areal")
    cases = [{"rejection": None, **case} for case in CASES.values()]
    np.savez(folder / "in.npz", cases=json.dumps(cases), credits=json.dumps(list(CREDITS.values())), **arrays())
    probe = [python, Path(__file__).with_name("functions_probe.py"), folder / "in.npz", folder / "out.npz"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(probe, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(np.load(folder / "out.npz"))


@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradient_are_areals(theirs, case):
    number, settings = list(CASES).index(case), CASES[case]
    given = {name: torch.from_numpy(value) for name, value in arrays().items()}
    new, mask = given["logprobs"].requires_grad_(), given["mask"].bool()
    rejection = settings.get("rejection")
    replies = torch.arange(5).repeat_interleave(12)[mask.flatten()] if "importance_sampling_level" in settings else None

    def flat(name: str) -> torch.Tensor:
        return given[name][mask]

    result = clipped_loss(
        flat("logprobs"),
        # without rejection AReaL leaves the behavior weight out altogether
        flat("old") if rejection else flat("proximal"),
        flat("advantages"),
        settings["eps_clip"],
        settings.get("eps_clip_higher", settings["eps_clip"]),
        flat("proximal"),
        rejection["upper"] if rejection else None,
        "truncate" if rejection and rejection["action"] == "clamp" else "mask",
        settings.get("c_clip"),
        replies,
    )
    loss = result.values.sum() / mask.sum()
    loss.backward()
    assert loss.item() == pytest.approx(theirs[f"loss_{number}"].item(), abs=1e-6)
    np.testing.assert_allclose(new.grad.numpy(), theirs[f"gradient_{number}"], atol=1e-6)


@pytest.mark.parametrize("case", CREDITS)
def test_advantages_and_returns_are_areals(theirs, case):
    """AReaL's tensors are shifted: what belongs to a token stands where the token before it is."""
    number, settings, given = list(CREDITS).index(case), CREDITS[case], arrays()
    found, returns = [], []
    grouped = group_advantages(given["rewards"].reshape(-1, 4)).ravel()
    for row, sampled in enumerate(given["sampled"]):
        places = np.flatnonzero(sampled)
        if not settings["critic"]:
            found.append(np.full(len(places), grouped[row]))
            continue
        turns = np.cumsum(np.diff(places, prepend=places[0]) > 1)
        rewards = np.zeros(len(places))
        rewards[-1] = given["rewards"][row]
        steps = {f"{unit}_discount": settings["discount"] for unit in ("token", "turn")}
        steps |= {f"{unit}_lambda": settings["decay"] for unit in ("token", "turn")}
        estimates = gae(rewards, given["values"][row][places - 1], turns, **steps)
        found.append(estimates.advantages)
        returns.append(estimates.returns)
    ours = whiten(np.concatenate(found)) if settings["whitened"] else np.concatenate(found)
    shifted = np.roll(given["sampled"], -1, axis=1)
    np.testing.assert_allclose(ours, theirs[f"advantages_{number}"][shifted], atol=1e-6)
    if settings["critic"]:
        np.testing.assert_allclose(np.concatenate(returns), theirs[f"returns_{number}"][shifted], atol=1e-6)


@pytest.mark.parametrize("name", ["k1", "k2", "k3"])
def test_estimates_of_divergence_are_areals(theirs, name):
    given = arrays()
    np.testing.assert_allclose(kl_estimate(given["proximal"], given["logprobs"], name), theirs[name], atol=1e-6)


def test_the_value_loss_is_areals(theirs):
    given = {name: torch.from_numpy(value) for name, value in arrays().items()}
    losses = value_loss(given["value"], given["old_value"], given["target"], 0.2)
    assert losses[given["mask"]].mean().item() == pytest.approx(theirs["value_loss"].item(), abs=1e-6)

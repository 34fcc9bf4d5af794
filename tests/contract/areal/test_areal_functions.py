"""The clipped objective and the value loss against AReaL's own functions, where both compute the same."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from deskhand.algorithms.objective import clipped_loss
from deskhand.algorithms.ppo import value_loss

ROOT = Path(__file__).parents[3]
CASES = {
    "plain": {"eps_clip": 0.2},
    "clip higher": {"eps_clip": 0.2, "eps_clip_higher": 0.28},
    "dual clip": {"eps_clip": 0.2, "eps_clip_higher": 0.28, "c_clip": 1.5},
    "capped, dropped": {"eps_clip": 0.2, "rejection": {"level": "token", "action": "mask", "metric": "ratio", "upper": 1.5}},
    "capped, truncated": {"eps_clip": 0.2, "rejection": {"level": "token", "action": "clamp", "metric": "ratio", "upper": 1.5}},
    "sequence ratios": {"eps_clip": 3e-2, "eps_clip_higher": 4e-2, "importance_sampling_level": "sequence"},
}


@pytest.fixture(scope="module")
def python() -> Path:
    """That of the environment of AReaL's functions, which is made first if need be."""
    if os.environ.get("DESKHAND_TEST_AREAL") == "0":
        pytest.skip("DESKHAND_TEST_AREAL=0: the tests against a real AReaL are left out")
    words = ["bash", str(ROOT / "scripts" / "environment"), "areal-functions"]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, "scripts/environment areal-functions did not work; it says why above"
    return Path(done.stdout.strip()) / "bin" / "python"


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
    return {name: value.astype(np.float32) for name, value in given.items()} | {"mask": mask}


@pytest.fixture(scope="module")
def theirs(python, tmp_path_factory) -> dict[str, np.ndarray]:
    """What AReaL says, case by case."""
    folder = tmp_path_factory.mktemp("areal")
    cases = [{"rejection": None, **case} for case in CASES.values()]
    np.savez(folder / "in.npz", cases=json.dumps(cases), **arrays())
    probe = [str(python), str(Path(__file__).with_name("functions_probe.py")), str(folder / "in.npz"), str(folder / "out.npz")]
    done = subprocess.run(probe, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(np.load(folder / "out.npz"))


@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradient_are_areals(theirs, case):
    number, settings = list(CASES).index(case), CASES[case]
    given = {name: torch.from_numpy(value) for name, value in arrays().items()}
    new, mask = given["logprobs"].requires_grad_(), given["mask"]
    rejection = settings.get("rejection")
    replies = torch.arange(5).repeat_interleave(12).flatten() if "importance_sampling_level" in settings else None

    def flat(name: str) -> torch.Tensor:
        return given[name].flatten()

    result = clipped_loss(
        new.flatten(),
        # without rejection AReaL leaves the behaviour weight out altogether
        flat("old") if rejection else flat("proximal"),
        flat("advantages"),
        mask.flatten(),
        settings["eps_clip"],
        settings.get("eps_clip_higher", settings["eps_clip"]),
        flat("proximal"),
        rejection["upper"] if rejection else None,
        "truncate" if rejection and rejection["action"] == "clamp" else "drop",
        settings.get("c_clip"),
        replies,
    )
    loss = result.values.sum() / mask.sum()
    loss.backward()
    assert loss.item() == pytest.approx(theirs[f"loss_{number}"].item(), abs=1e-6)
    np.testing.assert_allclose(new.grad.numpy(), theirs[f"gradient_{number}"], atol=1e-6)


def test_the_value_loss_is_areals(theirs):
    given = {name: torch.from_numpy(value) for name, value in arrays().items()}
    losses = value_loss(given["value"], given["old_value"], given["target"], 0.2)
    assert losses[given["mask"]].mean().item() == pytest.approx(theirs["value_loss"].item(), abs=1e-6)

"""The build of the bundled policy, whole and small, on real desktops."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import torch

from deskhand.models.load import load
from deskhand.recipes.tiny.build import STAGES, BuildPlan, build
from deskhand.tasks.suites import basics
from deskhand.tasks.task import seed_for

PLAN = BuildPlan(
    scenes=(("terminal_run", 2, 2), ("calculator_number", 1, 2)),
    demonstrations=2,
    stages=tuple(replace(stage, seconds=1.0) for stage in STAGES),
    rows=2,
)
TEST_INSTRUCTIONS = {
    basics.make_task(family, seed_for("test_instructions", index)).instruction
    for family in PLAN.families
    for index in range(200)
}


def test_a_build_writes_checkpoints_from_data_without_test_instructions(tmp_path: Path) -> None:
    said: list[str] = []
    build(PLAN, tmp_path / "work", tmp_path / "out", said.append)
    scenes, played = (
        pickle.loads((tmp_path / "work" / f"{name}.pickle").read_bytes()) for name in ("scenes", "demonstrations")
    )
    questions = {question for scene in scenes for question, _ in scene.questions}
    assert len(questions) > 40
    assert not TEST_INSTRUCTIONS & (questions | {one.instruction for one in played})
    first, last = (load(str(folder)).model for folder in (tmp_path / "work" / "sharpening", tmp_path / "out"))
    weights = dict(last.named_parameters())
    assert any(not torch.equal(tensor, weights[name]) for name, tensor in first.named_parameters())

    again: list[str] = []
    build(PLAN, tmp_path / "work", tmp_path / "out", again.append)
    assert again == [line for line in said if line.startswith("wrote")], "finished stages are not repeated"

"""Suites of families that a Python file or MiniWoB++ defines."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_suite_config import FAMILIES, suite_of

from deskhand.config.load import load_config
from deskhand.errors import ConfigError
from deskhand.recipes.assemble import train_task_factory
from deskhand.recipes.suite import load_suite
from deskhand.tasks.suites import miniwob


def test_families_of_a_python_file_are_a_suite_whose_variants_differ(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FAMILIES)
    config = load_config(None, ["suite.format=python", f"suite.path={tmp_path}/mine.py", "evaluation.num_episodes=3"])
    found = load_suite(config.suite, config.desktop.backend)
    assert [train_task_factory(found, config.seed)(number).id for number in (0, 5)] == ["mine/0", "mine/5"]
    assert len({task.id for task in found.tasks_of("test", 3)}) == 3
    for text, said in (("1/0", "raised ZeroDivisionError"), ("FAMILIES = [1]", "must define FAMILIES")):
        (tmp_path / "other.py").write_text(text)
        with pytest.raises(ConfigError, match=said):
            suite_of(["suite.format=python", f"suite.path={tmp_path}/other.py", f"suite.families=[{said.split()[0]}]"])


@pytest.mark.skipif(miniwob.unavailable_reason() is not None, reason="MiniWoB++ is not installed")
def test_miniwob_is_a_suite_by_its_name() -> None:
    found = suite_of(["suite=miniwob"])
    assert len(found.train_tasks) == 130
    assert found.make("miniwob/click-button", 3).family == "miniwob/click-button"
    few = suite_of(["suite=miniwob", "suite.families=[click-button, miniwob/focus-text]"])
    assert few.train_tasks == ("miniwob/click-button", "miniwob/focus-text")

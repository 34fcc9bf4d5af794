"""Suites of families: the bundled ones by name, those of a Python file, and families that are held out."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_suite_config import FAMILIES, suite_of

from deskhand.config.load import load_config
from deskhand.errors import ConfigError
from deskhand.recipes.assemble import train_task_factory
from deskhand.recipes.suite import load_suite
from deskhand.tasks.suites import miniwob, web


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


def test_web_is_a_suite_whose_applications_can_be_selected_and_left_out() -> None:
    assert len(suite_of(["suite=web"]).train_tasks) == len(web.FAMILIES)
    few = suite_of(["suite=web", "suite.families=[shop, web/mail/reply]", "suite.exclude=[shop/order]"])
    shop = {name for name in web.FAMILIES if name.startswith("web/shop/")}
    assert set(few.train_tasks) == {*shop, "web/mail/reply"} - {"web/shop/order"}
    mixed = suite_of(["suite.families=[web/mail/reply, terminal_run]"])
    assert mixed.train_tasks == ("web/mail/reply", "terminal_run")
    with pytest.raises(ConfigError, match=r"solitaire.*web/mail/reply"):
        suite_of(["suite=web", "suite.families=[solitaire]"])


def test_whole_families_and_applications_are_held_out() -> None:
    found = suite_of(["suite=web", "suite.held_out_families=[shop, web/mail/reply]"])
    held_out = {name for name in web.FAMILIES if name.startswith("web/shop/")} | {"web/mail/reply"}
    assert set(found.eval_tasks) == held_out
    assert set(found.train_tasks) == set(web.FAMILIES) - held_out
    for split in ("train", "validation", "test"):
        played = {task.family for task in found.tasks_of(split, 100)}
        assert played == (held_out if split == "test" else set(found.train_tasks))
    seeds = {split: {task.seed for task in found.tasks_of(split, 100)} for split in ("train", "validation", "test")}
    assert not seeds["train"] & seeds["validation"]
    names = "suite.families=[page_form, page_save, sheet_cell, page_to_note]"
    by_package = suite_of([names, "suite.held_out_families=[chromium]"])
    assert (by_package.train_tasks, by_package.eval_tasks) == (
        ("sheet_cell",),
        ("page_form", "page_save", "page_to_note"),
    )


@pytest.mark.parametrize(
    ("entry", "said"),
    [("gimp", "no family or application 'gimp'"), ("chromium", "holds out every family")],
)
def test_held_out_families_that_cannot_be_are_named(entry: str, said: str) -> None:
    with pytest.raises(ConfigError, match=rf"suite\.held_out_families: .*{said}"):
        suite_of(["suite.families=[page_form, page_save]", f"suite.held_out_families=[{entry}]"])


def test_held_out_families_of_a_python_file_must_exist(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FAMILIES)
    settings = ["suite.format=python", f"suite.path={tmp_path}/mine.py"]
    with pytest.raises(ConfigError, match=r"suite\.held_out_families: .*'theirs'"):
        suite_of([*settings, "suite.held_out_families=[theirs]"])


def test_task_files_refuse_held_out_families(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"suite\.held_out_families: task files .* suite\.eval_fraction"):
        suite_of(["suite.format=deskhand", f"suite.path={tmp_path}", "suite.held_out_families=[x]"])


def test_the_steps_of_families_can_be_limited(tmp_path: Path) -> None:
    limit = "suite.max_episode_steps=4"
    for settings in (["suite.families=[page_form]"], ["suite=miniwob", "suite.families=[click-test]"]):
        (name,) = suite_of([*settings, limit]).train_tasks
        assert suite_of([*settings, limit]).make(name, 0).max_steps == 4
        assert suite_of(settings).make(name, 0).max_steps > 4

"""YAML task files: problems name file, key and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from deskhand.errors import ConfigError
from deskhand.tasks.formats import task_files, yaml_schema
from deskhand.tasks.formats.located_yaml import TaskFileError
from deskhand.tasks.formats.yaml_task import load_task

SHOPPING = Path(__file__).parent / "files" / "shopping.yaml"


def problems_with(old: str, new: str, folder: Path) -> list[tuple[str, int | None, str]]:
    """(key, line, message) of everything that is wrong with the example when a piece of it is replaced."""
    text = SHOPPING.read_text()
    assert text.count(old) >= 1, old
    path = folder / "changed.yaml"
    path.write_text(text.replace(old, new, 1))
    found = task_files.lint_file(path)
    assert all(problem.file == str(path) and str(problem).startswith(str(path)) for problem in found)
    return [(problem.key, problem.line, problem.message) for problem in found if not problem.note]


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(SHOPPING.read_text().splitlines(), 1) if text in line)


def test_the_example_loads_without_a_problem(tmp_path: Path) -> None:
    assert problems_with("difficulty: easy", "difficulty: medium", tmp_path) == []
    task = load_task(SHOPPING)
    assert (task.id, task.width, task.max_steps) == ("native/shopping/0", 512, 6)
    assert task.milestones[1].after == ("something was added",)


@pytest.mark.parametrize(
    ("old", "new", "at", "key", "word"),
    [
        ("difficulty: easy", "difficulty: easy\ncolour: red", "screen:", "colour", "unknown key"),
        ("contains: [pears]", "has: [pears]", "contains: [pears]", "milestones[1].check.text.has", "unknown key"),
        ("deskhand: 2", "deskhand: 1", "deskhand:", "deskhand", "schema version must be 2, got 1"),
        ("difficulty: easy", "difficulty: simple", "difficulty:", "difficulty", "simple"),
        ("id: shopping", "id: a/b", "id:", "id", "must be a name"),
        ("limits: {steps: 6}", "limits: {steps: 0}", "limits:", "limits.steps", "got 0"),
        ("limits: {steps: 6}", "limits: {steps: 2}", "limits:", "limits.steps", "the oracle takes 5 steps"),
        ("limits: {steps: 6}", "limits: {}", "limits:", "limits.steps", "missing"),
        ("width: 512", "width: '512'", "screen:", "screen.width", '"512"'),
        ("weight: 0.2", "weight: 0.9", "milestones:", "milestones", "got 1.1"),
        ("weight: 0.2", "weight: -1", "weight:", "milestones[0].weight", "got -1"),
        ("after: [something", "after: [nothing", "after:", "milestones[1].after", "must name earlier"),
        ("name: pears were added", "name: something was added", "name: pears", "milestones[1].name",
         "another milestone"),
        ("at: [40, 60]", "at: [40, 600]", "place:", "setup[3].place.at", "outside the screen"),
        ("at: [40, 60]", "at: [40]", "place:", "setup[3].place.at[1]", "missing"),
        ("at: [100, -20], window: list.txt", "at: [100, -20]", "click:", "oracle[0][0]", "outside the screen"),
        ('text: "stay', 'copy_of: absent.txt, text: "stay', "other.txt, text", "setup[1].write",
         "either text or copy_of"),
        ('text: "stay as you are"', "copy_of: absent.txt", "other.txt, text", "setup[1].write.copy_of",
         "file not found"),
        ('text: "stay as you are"', "copy_of: ../../keys", "other.txt, text", "setup[1].write.copy_of",
         "relative to the task file"),
        ('text: "stay as you are"', "copy_of: /etc/passwd", "other.txt, text", "setup[1].write.copy_of",
         "relative to the task file"),
        ("path: Lists/other.txt, text", "path: ../other.txt, text", "other.txt, text", "setup[1].write.path",
         "guest's home"),
        ("launch: {run: [l3afpad, Lists/list.txt]", "launch: {run: []", "launch:", "setup[2].launch.run", "at least 1"),
        ("  - place:", "  - wait: 1\n    place:", "- place:", "setup[3]", "exactly one of write"),
        ("equals: stay as you are", "matches: '('", "equals: stay", "check.all[1].text.matches",
         "invalid regular expression"),
        (", equals: stay as you are", "", "equals: stay", "check.all[1].text", "at least one of"),
        ("equals: stay as you are}", "equals: stay as you are}\n      weight: 2", "  all:", "check.all", "of a sum"),
        ("[wait: 0.5]", "[wait: null]", "[wait: 0.5]", "oracle[3][0]", "exactly one of click"),
    ],
)  # fmt: skip
def test_problems_name_file_key_and_line(old: str, new: str, at: str, key: str, word: str, tmp_path: Path) -> None:
    found = problems_with(old, new, tmp_path)
    assert [(each[0], each[1]) for each in found] == [(key, line_of(at))], found
    assert word in found[0][2]


def test_all_problems_are_reported_at_once(tmp_path: Path) -> None:
    assert len(problems_with("difficulty: easy", "difficulty: harder\ncolour: red\nformat_penalty: 3", tmp_path)) == 3
    with pytest.raises(ConfigError, match=r"and 2 more; deskhand tasks lint"):
        yaml_schema.load(tmp_path / "changed.yaml")


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "empty"),
        ("deskhand: [", "invalid YAML"),
        ("deskhand: 2\nid: a\nid: b", "changed.yaml:3: id: duplicate key"),
        ("deskhand: &a 1\nid: *a", "anchors and aliases"),
        ("deskhand: 2\nid: !!python/object/apply:os.system [ls]", "no_value_or_tag"),
        ("deskhand: 2\n? [a]\n: 1", "a key must be a scalar"),
        ("deskhand: 2\n<<: {a: 1}", "a key must be a scalar"),
    ],
)
def test_invalid_yaml_is_rejected(text: str, word: str, tmp_path: Path) -> None:
    path = tmp_path / "changed.yaml"
    path.write_text(text)
    with pytest.raises(TaskFileError) as caught:
        yaml_schema.load(path)
    assert word in str(caught.value) or word == "no_value_or_tag"

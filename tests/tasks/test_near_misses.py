"""Example end states, nearly right or forged, judged from files without a desktop."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pytest
from PIL import Image

from deskhand.errors import EvaluatorError
from deskhand.tasks.end_state import BLOBS, FORMAT, EndState
from deskhand.tasks.judge import judge
from deskhand.tasks.outcome import Finding, Outcome, Scored
from deskhand.tasks.suites.basics import FAMILIES, pictures
from deskhand.tasks.suites.basics.office_files import workbook
from deskhand.tasks.suites.basics.pictures import PictureScenario
from deskhand.tasks.suites.basics.spreadsheets import SpreadsheetScenario
from deskhand.tasks.task import FileContents, Task

LIVE = {"calculator_number", "calculator_sum", "terminal_close"}
"""Their end is in no file."""
ALSO_WRONG = {"note_to_sheet", "sheet_total"}
"""There the note is not among what is forged, and no program has computed the formula's value."""
SEED = 5
COLUMN_RESULTS = {"SUM": "sum", "MAX": "largest", "MIN": "smallest", "AVERAGE": "average"}


def end_of(folder: Path, files: FileContents, folders: set[str]) -> EndState:
    """A home of these files, in which these folders are too."""
    (folder / BLOBS).mkdir(parents=True, exist_ok=True)
    names: dict[str, set[str]] = {place: set() for place in folders | {"."}}
    kept: dict[str, str] = {}
    for path in [*files, *folders]:
        for parent in PurePosixPath(path).parents:
            below = PurePosixPath(path).relative_to(parent).parts
            if below:
                names.setdefault(str(parent), set()).add(below[0])
    for path, data in files.items():
        kept[path] = hashlib.sha256(data).hexdigest()
        (folder / BLOBS / kept[path]).write_bytes(data)
    record = {"files": kept, "folders": {place: sorted(below) for place, below in names.items()}}
    return EndState(folder / "end.json", record | {"format": FORMAT, "windows": [], "clipboard": None, "skipped": []})


async def judged(task: Task, folder: Path, files: FileContents, folders: set[str]) -> Outcome:
    return await judge(task, end_of(folder, files, folders), grace_s=0.0)


@pytest.mark.parametrize(
    "family", sorted(name for name in FAMILIES if FAMILIES[name].generate(SEED).example_end_states is not None)
)
async def test_near_misses_score_zero_and_correct_states_score_one(family: str, tmp_path: Path) -> None:
    task = FAMILIES[family].generate(SEED)
    assert task.example_end_states is not None
    states = task.example_end_states()
    every = [*states.negatives.values(), *([states.positive] if states.positive else [])]
    parents = {str(parent) for state in every for path in state for parent in PurePosixPath(path).parents}
    folders = {place for place in parents if place != "." and not any(place in state for state in every)}
    assert len(states.negatives) >= 3
    for what, files in states.negatives.items():
        outcome = await judged(task, tmp_path, files, folders)
        assert isinstance(outcome, Scored)
        assert outcome.value == 0.0, what
        assert outcome.failed
        assert all(finding.expected for finding in outcome.findings)
    if states.positive is not None:
        outcome = await judged(task, tmp_path, states.positive, folders)
        assert isinstance(outcome, Scored)
        assert outcome.value == 1.0


def forgeable_by_application() -> list[str]:
    tasks = {name: family.generate(SEED) for name, family in FAMILIES.items()}
    return sorted(name for name, task in tasks.items() if task.forged_files and task.example_end_states is None)


@pytest.mark.parametrize("family", forgeable_by_application())
async def test_a_forged_file_fails_only_by_the_application_that_saved_it(family: str, tmp_path: Path) -> None:
    task = FAMILIES[family].generate(SEED)
    files = {path: make() for path, make in task.forged_files.items()}
    outcome = await judged(task, tmp_path, files, {"Documents"})
    assert isinstance(outcome, Scored)
    wrong = {finding.clause for finding in outcome.failed}
    assert "the application that saved the file" in wrong
    assert len(wrong) == 1 + (family in ALSO_WRONG), wrong


def test_every_family_has_an_end_that_is_nearly_right_or_forged() -> None:
    tasks = {name: family.generate(SEED) for name, family in FAMILIES.items()}
    assert {name for name, task in tasks.items() if task.example_end_states is None and not task.forged_files} == LIVE


def test_every_hard_family_has_milestones() -> None:
    hard = [family for family in FAMILIES.values() if family.difficulty == "hard"]
    assert [family.name for family in hard if not family.generate(SEED).milestones] == []


@pytest.mark.parametrize("weights", [(0.299, 0.587, 0.114), (0.2126, 0.7152, 0.0722), (1, 1, 1), (1, 0, 0)])
async def test_every_way_to_weigh_the_channels_gives_shades_of_gray(
    weights: tuple[float, float, float], tmp_path: Path
) -> None:
    for seed in range(10):
        scenario, task = PictureScenario("picture_gray", seed), FAMILIES["picture_gray"].generate(seed)
        gray = np.asarray(scenario.picture) @ np.array(weights) / sum(weights)
        result = io.BytesIO()
        Image.fromarray(gray.round().astype(np.uint8)).save(result, format="PNG")
        paths = [f"{pictures.FOLDER}/{name}" for name in (scenario.source, scenario.result)]
        outcome = await judged(
            task, tmp_path, dict(zip(paths, (scenario.png(), result.getvalue()), strict=True)), set()
        )
        assert isinstance(outcome, Scored)
        assert outcome.value == 1.0, outcome.failed


async def follows(function: str, formula: str, folder: Path) -> Finding:
    """The clause of `sheet_total` that is about the formula."""
    make, asked = FAMILIES["sheet_total"].generate, f"the {COLUMN_RESULTS[function]} of the column"
    seed = next(seed for seed in range(50) if asked in make(seed).instruction)
    scenario, task = SpreadsheetScenario("sheet_total", seed), make(seed)
    rows = [*scenario.rows, [None], [None, None, None, formula.replace("LAST", f"D{len(scenario.rows)}")]]
    book = workbook({scenario.sheet_names[0]: rows})
    outcome = await judged(task, folder, {scenario.path: book}, {"Documents"})
    assert isinstance(outcome, Scored)
    return next(finding for finding in outcome.findings if "follows the column" in finding.clause)


@pytest.mark.parametrize(
    ("function", "formula", "holds"),
    [
        ("SUM", "=SUM(D2:LAST)", True),
        ("SUM", "=SUM(D1:LAST)", True),
        ("SUM", "=AVERAGE(D2:LAST)*COUNT(D2:LAST)", True),
        ("SUM", "=SUM(D3:LAST)+D2", True),
        ("SUM", "=113", False),
        ("SUM", "=100+13", False),
        ("SUM", "=113+0*SUM(D2:LAST)", False),
        ("SUM", "=SUM(D3:LAST)", False),
        ("SUM", "=IF(1;113;SUM(D2:LAST))", False),
        ("MAX", "=MAX(D2:LAST)", True),
        ("MAX", "=LARGE(D2:LAST;1)", True),
        ("MAX", "=MAX(D3:LAST)", False),
        ("MAX", "=D4", False),
        ("MIN", "=MIN(D2:LAST)", True),
        ("MIN", "=SMALL(D2:LAST,2)", False),
        ("AVERAGE", "=AVERAGE(D2:LAST)", True),
        ("AVERAGE", "=SUM(D2:LAST)/COUNTA(D2:LAST)", True),
        ("AVERAGE", "=SUM(D2:LAST)/100", False),
    ],
)
async def test_a_total_must_follow_every_number_of_its_column(
    function: str, formula: str, holds: bool, tmp_path: Path
) -> None:
    finding = await follows(function, formula, tmp_path)
    assert bool(finding.value) is holds, finding.read


def test_the_number_of_rows_is_not_asked_for_by_the_name_of_a_column() -> None:
    """ "How many items" could be the sum of the column Number."""
    asked = [FAMILIES["sheet_to_note"].generate(seed).instruction for seed in range(200)]
    counting = [text for text in asked if "how many" in text]
    assert counting
    assert all("how many rows" in text for text in counting)


DIALOGS = ("Replace", "Find and Replace", "Rename", "Rename Sheet", "Confirm", "Insert Table", "Export Image", "Save")


async def values_of(task: Task, folder: Path, titles: list[str]) -> list[tuple[float, bool] | None]:
    """Value and trust of the check and of each milestone, where no file is left but windows have these titles."""
    state = end_of(folder, {}, {"Documents", "Downloads"})
    place = {"x": 0, "y": 20, "width": 90, "height": 90, "frame_top": 20, "frame_left": 0}
    windows = [{"id": 9 + index, "title": title, "wm_class": title} | place for index, title in enumerate(titles)]
    told: Any = EndState(state.path, state.record | {"windows": windows, "programs": {}, "exit_codes": {}})
    found: list[tuple[float, bool] | None] = []
    for check in (task.check, *(milestone.check for milestone in task.milestones)):
        try:
            result = await check(told)
            found.append((result.value, result.untrusted_source))
        except EvaluatorError:  # it needs more than an end state has
            found.append(None)
    return found


@pytest.mark.parametrize("family", sorted(FAMILIES))
async def test_what_windows_are_called_earns_nothing_that_is_trusted(family: str, tmp_path: Path) -> None:
    for seed in range(SEED, SEED + 3):
        task = FAMILIES[family].generate(seed)
        titles = [*DIALOGS, task.instruction, *task.instruction.replace(",", " ").split()]
        without, with_them = [await values_of(task, tmp_path, each) for each in ([], titles)]
        assert with_them[0] is None or with_them[0][0] == 0.0
        for before, after in zip(without, with_them, strict=True):
            assert before == after or after is None or after[1], "a title earns a part that is not marked"

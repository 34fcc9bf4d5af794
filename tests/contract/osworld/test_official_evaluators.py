"""OSWorld's own metrics from PyPI, behind the wall: they give what ours give, and the same for siblings at once as for
one by one.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from metric_cases import CASES
from packed_documents import xlsx
from task_files import SHARED

from benchmarks.osworld.sibling_episodes import outcomes
from deskhand.errors import EvaluatorError
from deskhand.osworld.official_evaluators import Files, GetterRequest, MetricRequest, OfficialEvaluators, Read, Value
from deskhand.osworld.scoring import score_with_own_metrics
from deskhand.tasks.document_readers import InvalidDocument
from deskhand.tasks.formats import osworld
from deskhand.tasks.formats.osworld_metric_options import INFEASIBLE
from deskhand.tasks.outcome import Scored

NOT_IN_THE_WHEEL = {"check_play_and_exit", "check_structure_sim_with_threshold"}
"""Metrics that OSWorld's task files name and desktop-env 1.0.2 does not have."""


def read(value: Any) -> Read:
    return Files((("file.bin", value),)) if isinstance(value, bytes) else Value(value)


def judged(evaluators: OfficialEvaluators, *questions: MetricRequest, conj: str = "and") -> float:
    return asyncio.run(evaluators.judge(list(questions), conj)).value


def test_ours_give_what_osworlds_own_metrics_give(official: OfficialEvaluators) -> None:
    differing = []
    for metric, result, expected, options, value in CASES:
        if isinstance(result, bytes) and b"<!ENTITY" in result:
            continue  # ours take no file that defines entities, theirs do
        question = MetricRequest(metric, read(result), read(expected) if expected is not None else None, options)
        try:
            theirs: float | str = judged(official, question)
        except InvalidDocument:  # it crashed on what the guest wrote
            theirs = 0.0
        except EvaluatorError as error:
            theirs = str(error)
        if theirs != value:
            differing.append((metric, result, value, theirs))
    wrong = [case for case in differing if isinstance(case[3], float)]
    assert not wrong, "\n".join(map(str, wrong))
    assert len(differing) <= 8, "\n".join(map(str, differing))


def sibling(index: int) -> MetricRequest:
    """A table that is right in some cells, and how much of it: 0 or 1, never alike for two neighbours."""
    gold = xlsx(Sheet1=[["a", 1.5], ["b", 2.0]])
    mine = gold if index % 3 else xlsx(Sheet1=[["a", 1.5], ["b", float(index)]])
    rules = {"rules": [{"type": "sheet_data", "sheet_idx0": 0, "sheet_idx1": "EI0"}]}
    return MetricRequest("compare_table", Files((("mine.xlsx", mine),)), Files((("gold.xlsx", gold),)), rules)


def test_32_siblings_judged_at_once_are_rewarded_as_one_by_one(official: OfficialEvaluators) -> None:
    texts = [f"the quick brown fox {index} jumps" for index in range(32)]
    fuzzy = [
        MetricRequest("fuzzy_match", Value(text), Value({"expected": "the quick brown fox jumps"})) for text in texts
    ]
    tables = [sibling(index) for index in range(32)]
    asked = [[table, other] for table, other in zip(tables, fuzzy, strict=True)]
    alone = [asyncio.run(official.judge(each, "or")).scores for each in asked]

    async def at_once() -> list[tuple[float, ...]]:
        return [each.scores for each in await asyncio.gather(*(official.judge(each, "or") for each in asked))]

    together = asyncio.run(at_once())
    assert [[score.hex() for score in scores] for scores in together] == [
        [score.hex() for score in scores] for scores in alone
    ]
    assert len(set(alone)) > 1


async def test_sibling_desktops_judged_at_once_have_the_outcomes_of_one_by_one(official: OfficialEvaluators) -> None:
    together, alone = await outcomes(6, lambda: official)
    assert repr(together) == repr(alone)
    values = [outcome.value for outcome in together if isinstance(outcome, Scored)]
    assert len(values) == 6
    assert len(set(values)) >= 4


def test_getters_of_osworld_make_of_files_what_metrics_take(official: OfficialEvaluators) -> None:
    table = xlsx(Sheet1=[["name", "sum"], ["a", 1.0], ["b", 2.5]])
    path = "/home/user/table.xlsx"
    last_row = GetterRequest(
        "content_from_vm_file", {"path": path, "file_type": "xlsx", "file_content": "last_row"}, {path: table}
    )
    assert judged(official, MetricRequest("literal_match", last_row, Value(["b", "2.5"]), {"type": "list"})) == 1.0
    when = GetterRequest(
        "rule_relativeTime",
        {"rules": {"relativeTime": {"from": "tomorrow"}, "expected": {"time": "{DayD}"}, "timezone": "UTC"}},
    )
    assert judged(official, MetricRequest("exact_match", Value({}), when)) == 0.0
    state = "/home/user/.config/google-chrome/Local State"
    language = GetterRequest("chrome_language", {}, {state: b'{"intl": {"app_locale": "xx"}}'})
    assert judged(official, MetricRequest("exact_match", language, Value({"expected": "xx"}))) == 1.0
    with pytest.raises(EvaluatorError, match="which was not read"):
        judged(official, MetricRequest("exact_match", GetterRequest("bookmarks", {}, {}), Value({"expected": {}})))


def test_a_metric_that_needs_what_is_not_installed_is_an_error(official: OfficialEvaluators) -> None:
    picture = Files((("a.png", b"no picture"),))
    with pytest.raises(EvaluatorError, match=r"compare_image_text.*easyocr.Reader is not installed"):
        judged(official, MetricRequest("compare_image_text", picture, Value({"type": "text", "text": "a"})))


@pytest.mark.skipif(
    not (SHARED / "osworld").is_dir(), reason="OSWorld's task files are not beside the checkout (../shared)"
)
def test_every_metric_of_the_task_files_but_two_is_in_the_evaluators(official: OfficialEvaluators) -> None:
    names = {
        clause.metric
        for loaded in osworld.load_folder(SHARED / "osworld").tasks
        for clause in loaded.task.evaluator.clauses
    }
    missing = []
    for name in sorted(names - {INFEASIBLE}):
        try:
            judged(official, MetricRequest(name, Value(None), Value(None)))
        except EvaluatorError as error:
            missing += [name] if "unknown metric" in str(error) else []
    assert set(missing) == NOT_IN_THE_WHEEL


def test_ours_join_as_the_process_joins(official: OfficialEvaluators) -> None:
    for conj in ("and", "or"):
        for values in ((True, False), (False, True), (True, True), (False, False)):
            questions = [MetricRequest("exact_match", Value(value), Value({"expected": True})) for value in values]
            assert score_with_own_metrics(questions, conj) == asyncio.run(official.judge(questions, conj))

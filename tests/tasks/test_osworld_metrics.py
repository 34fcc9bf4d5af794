"""Reimplemented OSWorld metrics: right, nearly right, missing; unknown rules are errors."""

from __future__ import annotations

import json
from typing import Any

import pytest
from metric_cases import BAR, CASES

from deskhand.errors import EvaluatorError
from deskhand.tasks import subprocess_call
from deskhand.tasks.checks.osworld_metrics import available, score, score_in_subprocess
from deskhand.tasks.document_readers import InvalidDocument
from deskhand.tasks.formats.osworld_metric_options import METRICS


@pytest.mark.parametrize(("metric", "result", "expected", "options", "value"), CASES)
def test_a_metric_equals_the_official_one(
    metric: str, result: Any, expected: Any, options: dict[str, Any], value: float
) -> None:
    before = json.dumps([str(result), expected if not isinstance(expected, bytes) else ""], default=str)
    assert score(metric, result, expected, options) == value
    assert json.dumps([str(result), expected if not isinstance(expected, bytes) else ""], default=str) == before


def test_every_metric_here_has_a_case_for_right_and_wrong_and_is_one_of_osworlds() -> None:
    seen = {name: {value for metric, _, _, _, value in CASES if metric == name} for name in available()}
    only_right = {"check_qt_max_volume", "check_one_instance_when_started_from_file"}
    assert {name for name, values in seen.items() if values != {0.0, 1.0}} == only_right
    assert available() <= METRICS.keys()


@pytest.mark.parametrize(
    ("metric", "result", "expected"),
    [
        ("compare_table", b"", b""),
        ("a_metric_of_nobody", "a", {"expected": "a"}),
        ("exact_match", "a", {}),
        ("exact_match", "a", None),
        ("is_extension_installed", "a", {"type": "perhaps", "expected": "a"}),
        ("is_expected_bookmarks", BAR, {"type": "liked_authors_websites_urls", "urls": []}),
        ("check_font_size", {"default_font_size": 1}, {"type": "odd"}),
        ("compare_text_file", b"a", None),
        ("check_list", b"a", {"expect": ["("]}),
    ],
)
def test_unavailable_metrics_and_invalid_rules_are_evaluator_errors(metric: str, result: Any, expected: Any) -> None:
    with pytest.raises(EvaluatorError, match=metric):
        score(metric, result, expected)


@pytest.mark.parametrize(
    ("metric", "result", "expected"),
    [
        ("check_font_size", {"default_font_size": "large"}, {"type": "range", "min": 1, "max": 9}),
        ("check_font_size", {}, {"type": "value", "value": 9}),
        ("check_font_size", ["a"], {"type": "value", "value": 9}),
        ("check_moved_jpgs", {"children": [{}]}, {"expected": ["a"]}),
        ("check_moved_jpgs", "a", {"expected": ["a"]}),
    ],
)
def test_a_guest_value_of_the_wrong_shape_scores_zero(metric: str, result: Any, expected: Any) -> None:
    assert score(metric, result, expected) == 0.0


def test_a_guest_text_that_never_matches_is_the_guest_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess_call, "CPU_S", 1.0)
    with pytest.raises(InvalidDocument, match="takes longer than 1 s"):
        score_in_subprocess("check_list", "a" * 60 + "!", {"expect": ["(a+)+$"]})

"""Task files of OSWorld and Windows Agent Arena: load, dump unchanged, report unknown parts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from full import FULL
from task_files import GETTERS, SHARED, STEPS, WINDOWS_GETTERS, WINDOWS_STEPS, full, on_windows, task, written

from deskhand.osworld.scoring import unsupported_reasons
from deskhand.tasks.formats import osworld, task_files, waa
from deskhand.tasks.formats.located_yaml import TaskFileError, canonical_json, load_json
from deskhand.tasks.formats.osworld import Loaded
from deskhand.tasks.formats.osworld_getters import OtherGetter
from deskhand.tasks.formats.osworld_setup_steps import CommandStep, OtherStep
from deskhand.tasks.formats.requirements import requirements_of

SMALL = {"osworld": full(STEPS, GETTERS), "waa": on_windows(full(STEPS + WINDOWS_STEPS, GETTERS + WINDOWS_GETTERS))}
LOAD: dict[str, Callable[[Path], Loaded[Any]]] = {"osworld": osworld.load, "waa": waa.load}
COUNTS = {"osworld": 293, "waa": 120}


def assert_round_trip(loaded: Loaded[Any]) -> None:
    assert canonical_json(osworld.dump(loaded.task)) == canonical_json(load_json(loaded.path).value), loaded.path


@pytest.mark.parametrize("source", LOAD)
def test_a_file_with_every_kind_of_step_and_getter_loads_and_is_dumped_as_it_was(source: str, tmp_path: Path) -> None:
    loaded = LOAD[source](written(tmp_path, SMALL[source]))
    assert [str(problem) for problem in loaded.problems] == []
    assert_round_trip(loaded)
    assert not any(isinstance(step, OtherStep) for _, step in loaded.task.steps())
    assert not any(isinstance(getter, OtherGetter) for _, getter in loaded.task.getters())
    assert task_files.lint_file(loaded.path) == []


@pytest.mark.parametrize("source", LOAD)
def test_every_public_task_file_loads_and_is_dumped_as_it_was(source: str) -> None:
    folder = SHARED / source
    if not folder.is_dir():
        pytest.skip(f"the public task files of {source} are not beside the checkout ({folder})")
    corpus = (osworld if source == "osworld" else waa).load_folder(folder)
    assert [str(problem) for _, problems in corpus.unreadable for problem in problems] == []
    assert len(corpus.tasks) == COUNTS[source]
    for loaded in corpus.tasks:
        assert_round_trip(loaded)
        assert not any(isinstance(step, OtherStep) for _, step in loaded.task.steps()), loaded.path
        assert not any(isinstance(getter, OtherGetter) for _, getter in loaded.task.getters()), loaded.path
        assert task_files.lint_file(loaded.path) == list(loaded.problems)


def test_public_files_have_no_problems_except_one_unknown_key() -> None:
    if not SHARED.is_dir():
        pytest.skip(f"the public task files are not beside the checkout ({SHARED})")
    found = [
        problem
        for source in ("osworld", "waa")
        for path in task_files.find_task_files([SHARED / source])
        for problem in task_files.lint_file(path)
    ]
    assert [problem for problem in found if not problem.note] == []
    unknown = [(problem.key, problem.line) for problem in found if "unknown key" in problem.message]
    assert unknown == [("env_may_change", 55)]


def test_numbers_and_unicode_text_are_kept_unchanged(tmp_path: Path) -> None:
    value = task(config=[{"type": "sleep", "parameters": {"seconds": seconds}} for seconds in (2, 2.0)])
    path = written(tmp_path, value)
    assert canonical_json(osworld.dump(osworld.load(path).task)) == canonical_json(value)
    assert canonical_json({"a": 2}) != canonical_json({"a": 2.0})
    value["instruction"] = "Ünïcode \U0001f600 and a lone \ud800"
    assert canonical_json(osworld.dump(osworld.load(written(tmp_path, value)).task)) == canonical_json(value)


@pytest.mark.parametrize(
    ("change", "key", "word", "note"),
    [
        ({"colour": "red"}, "colour", "unknown key, has no effect", True),
        ({"possibility_of_change": "low"}, "possibility_of_change", "did you mean 'possibility_of_env_change'?", False),
        ({"_comments": "c"}, "_comments", "comment", True),
        ({"config": [{"type": "dance", "parameters": {"a": 1}}]}, "config[0].type", "unknown setup step 'dance'",
         False),
        ({"config": [{"type": "create_folder", "parameters": {"path": "a"}}]}, "config[0].type", "create_folder",
         False),
        ({"config": [{"type": "open", "parameters": {"path": "a", "how": 1}}]}, "config[0].parameters.how",
         "unknown key", False),
        ({"evaluator": {"func": "guess"}}, "evaluator.func", "unknown metric 'guess'", False),
        ({"evaluator": {"func": "check_list", "result": {"type": "dream"}}}, "evaluator.result.type", "dream", False),
        ({"evaluator": {"func": "compare_csv", "options": {"loose": True}}}, "evaluator.options.loose",
         "has no option of this name", False),
        ({"evaluator": {"func": ["exact_match"], "result": []}}, "evaluator.result", "0 entries", False),
        ({"evaluator": {"func": "compare_table", "options": {"rules": [{"type": "x"}]}}}, "evaluator.options.rules",
         "'x'", False),
    ],
)  # fmt: skip
def test_unknown_parts_are_reported_with_key_and_line_and_kept(
    change: dict[str, Any], key: str, word: str, note: bool, tmp_path: Path
) -> None:
    path = written(tmp_path, task(**change))
    loaded = osworld.load(path)
    (problem,) = loaded.problems
    assert (problem.file, problem.key, problem.note) == (str(path), key, note)
    assert problem.line is not None
    assert f'"{key.split(".")[-1]}":' in path.read_text().splitlines()[problem.line - 1]
    assert word in problem.message
    assert_round_trip(loaded)


@pytest.mark.parametrize(
    ("change", "key", "word"),
    [
        ({"instruction": 3}, "instruction", "valid string, got 3"),
        ({"config": ["open"]}, "config[0]", "must be an object"),
        ({"evaluator": {"func": "exact_match", "result": {"path": "a"}}}, "evaluator.result", "must be an object"),
        ({"evaluator": {"func": "exact_match", "conj": "xor"}}, "evaluator.conj", "xor"),
        ({"evaluator": {}}, "evaluator.func", "missing"),
    ],
)
def test_a_value_of_the_wrong_type_is_rejected_with_its_key(
    change: dict[str, Any], key: str, word: str, tmp_path: Path
) -> None:
    with pytest.raises(TaskFileError) as caught:
        osworld.load(written(tmp_path, task(**change)))
    (problem, *_) = caught.value.problems
    assert problem.key == key
    assert word in problem.message
    assert problem.line is not None


GETTER_VALUES: tuple[Any, ...] = ({"k": "v"}, ["k"], "k", 3, None)
"""Each key of a getter is given as each of these, and not at all."""


@pytest.mark.parametrize("getter", [*GETTERS, *WINDOWS_GETTERS], ids=lambda getter: getter["type"])
def test_no_value_of_a_getter_costs_a_task(getter: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "a-wos.json"
    odd = {"url_include_expected"} if getter["type"] == "active_tab_html_parse" else set()
    for key in {*getter, *odd} - {"type"}:
        without = {name: value for name, value in getter.items() if name != key}
        for changed_getter in (without, *(without | {key: value} for value in GETTER_VALUES)):
            value = on_windows(task(evaluator={"func": "exact_match", "result": changed_getter}))
            path.write_text(json.dumps(value))
            loaded = waa.load(path)
            assert [str(problem) for problem in loaded.problems if not problem.note and key in problem.key] == []
            assert_round_trip(loaded)
            read = loaded.task.evaluator.result
            assert isinstance(read, OtherGetter) == any(problem.note for problem in loaded.problems), changed_getter


@pytest.mark.parametrize(
    ("change", "key", "word"),
    [
        ({"config": [{"type": "sleep", "parameters": {"seconds": "2"}}]}, "config[0].parameters.seconds", '"2"'),
        ({"config": [{"type": "open", "parameters": {}}]}, "config[0].parameters.path", "missing"),
        ({"evaluator": {"func": "exact_match", "result": {"type": "list_directory", "path": 3}}},
         "evaluator.result.path", "got 3"),
        ({"evaluator": {"func": ["exact_match"], "result": [{"type": "vm_file", "path": "a"}]}},
         "evaluator.result[0].dest", "missing"),
    ],
)  # fmt: skip
def test_a_value_that_a_function_may_not_take_is_kept_with_a_note(
    change: dict[str, Any], key: str, word: str, tmp_path: Path
) -> None:
    loaded = osworld.load(written(tmp_path, task(**change)))
    (problem,) = loaded.problems
    assert (problem.key, problem.note) == (key, True)
    assert word in problem.message
    assert problem.line is not None
    assert_round_trip(loaded)
    assert unsupported_reasons(loaded.task, with_official=True), "Deskhand itself cannot play it"


def test_expected_parts_of_an_address_are_a_list_or_an_object(tmp_path: Path) -> None:
    for parts in (["women", "jerseys"], {"women": "is_women"}):
        getter = {"type": "active_tab_html_parse", "category": "class&url", "url_include_expected": parts}
        loaded = osworld.load(written(tmp_path, task(evaluator={"func": "exact_match", "result": getter})))
        assert loaded.problems == ()


WINDOWS_STATE = (
    *("favorites", "history_for_edge", "edge_font_size", "edge_default_download_folder", "desktop_background"),
    *("is_file_desktop", "is_files_moved_downloads", "is_directory_read_only_for_user", "url_shortcuts_on_desktop"),
    *("default_browser", "active_hours_of_user_to_not_interrupt_for_windows_updates"),
)
WINDOWS_METRICS = ("check_edge_font_size", "check_qt_video_resize", "is_url_shortcut_on_desktop")


@pytest.mark.parametrize(
    ("getter", "metric"),
    [*((name, "exact_match") for name in WINDOWS_STATE), *(("favorites", name) for name in WINDOWS_METRICS)],
)
def test_what_only_windows_agent_arena_reads_is_known(getter: str, metric: str, tmp_path: Path) -> None:
    evaluator = {"func": metric, "result": {"type": getter}}
    loaded = waa.load(written(tmp_path, on_windows(task(evaluator=evaluator))))
    assert [problem.message for problem in loaded.problems if "unknown" in problem.message] == []
    assert {need.kind for need in requirements_of(loaded.task)} == {"windows"}


@pytest.mark.parametrize("text", ["", "{", "[1,]", '{"a": NaN}', "[" * 100_000])
def test_invalid_json_is_rejected_with_the_file(text: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(TaskFileError, match=r"a\.json.*invalid JSON"):
        osworld.load(path)


def test_a_duplicate_key_is_reported(tmp_path: Path) -> None:
    path = written(tmp_path, task())
    path.write_text(path.read_text().replace('"snapshot": "os"', '"snapshot": "os", "snapshot": "chrome"'))
    assert [problem.key for problem in osworld.load(path).problems] == ["snapshot"]


def test_the_clauses_of_an_evaluator_belong_together_by_position(tmp_path: Path) -> None:
    evaluator = {
        "func": ["exact_match", "compare_csv"],
        "result": [{"type": "vm_screen_size"}, {"type": "vm_file", "path": "a", "dest": "a"}],
        "expected": [None, {"type": "rule", "rules": {}}],
        "options": [{}, {"strict": True}],
        "conj": "or",
    }
    loaded = osworld.load(written(tmp_path, task(evaluator=evaluator)))
    assert loaded.problems == ()
    first, second = loaded.task.evaluator.clauses
    assert (first.metric, first.expected, first.options) == ("exact_match", None, {})
    assert (second.metric, second.options) == ("compare_csv", {"strict": True})
    assert getattr(second.expected, "type", "") == "rule"
    assert osworld.load(written(tmp_path, task(evaluator={"func": "infeasible"}))).task.infeasible


def test_steps_are_typed(tmp_path: Path) -> None:
    loaded = osworld.load(written(tmp_path, SMALL["osworld"]))
    launches = [step for _, step in loaded.task.steps() if isinstance(step, CommandStep) and step.type == "launch"]
    assert [step.parameters.words for step in launches[:2]] == [["soffice", "--calc"], ["vlc --version"]]


def test_only_the_task_folder_of_a_checkout_is_read(tmp_path: Path) -> None:
    written(tmp_path, task(), "evaluation_examples/examples/os/a.json")
    written(tmp_path, {"os": ["a"]}, "evaluation_examples/test_all.json")
    written(tmp_path, "broken", "evaluation_examples/examples/os/b.json")
    corpus = osworld.load_folder(tmp_path)
    assert [loaded.path.name for loaded in corpus.tasks] == ["a.json"]
    assert [path.name for path, _ in corpus.unreadable] == ["b.json"]
    with pytest.raises(TaskFileError, match="no task files"):
        osworld.load_folder(tmp_path / "evaluation_examples" / "examples" / "nothing")


ODD: tuple[Any, ...] = (None, [], {}, "", 0, True, [None], {"type": "rule"}, [[]])


def places(value: Any, keys: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Where values stand in `value`."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [keys, *(place for key, each in inner for place in places(each, (*keys, key)))]


def changed(value: Any, keys: tuple[str | int, ...], odd: Any) -> Any:
    """`value` with `odd` at `keys`."""
    if not keys:
        return odd
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[keys[0]] = changed(value[keys[0]], keys[1:], odd)
    return copy


def test_any_json_value_is_rejected_or_kept_unchanged(tmp_path: Path) -> None:
    path, refused, kept = tmp_path / "a.json", 0, 0
    for number, keys in enumerate(places(SMALL["waa"])[:: 1 if FULL else 3]):
        value = changed(SMALL["waa"], keys, ODD[number % len(ODD)])
        path.write_text(json.dumps(value))
        try:
            loaded = waa.load(path)
        except TaskFileError:
            refused += 1
            continue
        kept += 1
        assert canonical_json(osworld.dump(loaded.task)) == canonical_json(value)
        requirements_of(loaded.task, lambda program: program)
    assert min(refused, kept) > 30

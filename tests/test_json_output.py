"""`--json` of every command that prints a table, and tables that nothing cuts."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator

import pytest
from command_line import called, with_settings
from cyclopts import App

from deskhand.cli.main import app
from deskhand.cli.output import print_columns, print_json, reserve_output
from deskhand.tasks.suites import basics, family_registry, miniwob

WITH_TABLES = {
    "actions conformance", "actions support", "areal doctor", "compare", "demo", "desktop list", "diagnose", "doctor",
    "estimate", "eval", "gateway check", "rescore", "tasks audit", "tasks check-corpus", "tasks lint", "tasks list",
    "tasks stats",
    "tasks prefetch", "tasks resolve", "tasks show", "train",
}  # fmt: skip
QUICK = {
    "actions conformance deskhand_json": lambda found: found[0]["wrong"] == 0,
    "actions support": lambda found: found["deskhand_json"]["click"]["support"] == "lossless",
    "desktop list": lambda found: {"application", "packages", "installed"} <= found[0].keys(),
    "tasks list": lambda found: {each["family"] for each in found} == set(basics.FAMILIES),
    "tasks stats --suite web": lambda found: {"property": "end", "value": "answer", "families": 14} in found,
    "tasks show dialog_choice 7": lambda found: {"name": "split", "value": "train"} in found[0],
    "tasks resolve tiny_cpu": lambda found: "test" in found["tasks"][0]["splits"],
}
"""Commands, and what their JSON must say."""


def commands(group: App, prefix: str = "") -> Iterator[tuple[str, App]]:
    for name in group:
        if not name.startswith("-"):
            found = group[name]
            yield from commands(found, f"{prefix}{name} ") if list(_named(found)) else [(f"{prefix}{name}", found)]


def _named(group: App) -> Iterator[str]:
    yield from (name for name in group if not name.startswith("-"))


def test_every_command_that_prints_a_table_takes_json() -> None:
    found = {name for name, command in commands(app) if "as_json" in command.default_command.__annotations__}
    assert found == WITH_TABLES


@pytest.mark.parametrize("command", QUICK)
def test_standard_output_is_one_json_value(command: str, cli) -> None:
    found = json.loads(cli(*command.split(), "--json"))
    assert QUICK[command](found), found


def test_checks_of_this_machine_are_objects_and_keep_their_exit_code(monkeypatch, capsys) -> None:
    code, out, _ = called(monkeypatch, capsys, "doctor", "--json")
    found = json.loads(out)
    assert {"name", "ok", "detail", "fix", "needed"} == found[0].keys()
    assert code == (2 if any(each["needed"] and not each["ok"] for each in found) else 0)


def test_an_estimate_has_its_terms_in_bytes(cli) -> None:
    found = json.loads(cli("estimate", "tiny_cpu", "--json"))
    memory = found["memory"]
    assert sum(term["bytes"] for term in memory["terms"] if term["location"] == "device") == memory["total_bytes"]
    assert found["workload"]["turns"] > 0


def test_problems_of_task_files_are_objects_and_keep_their_exit_code(tmp_path, monkeypatch, capsys) -> None:
    (tmp_path / "broken.yaml").write_text("deskhand: 3\n")
    code, out, _ = called(monkeypatch, capsys, "tasks", "lint", str(tmp_path), "--json")
    (found,) = json.loads(out)
    assert code == 2
    assert found["file"] == str(tmp_path / "broken.yaml")
    assert not found["problems"][0]["note"]


def test_progress_of_an_evaluation_does_not_mix_with_its_json(tmp_path, monkeypatch, capsys) -> None:
    few = with_settings("suite.families=[dialog_choice]", "evaluation.num_episodes=1", "desktop.prewarm=0")
    words = ["eval", str(tmp_path / "run"), "--policy", "noop", "--json", *few]
    code, out, err = called(monkeypatch, capsys, *words)
    assert code == 0, err
    found = json.loads(out)
    assert (found["name"], found["success"]["hits"], found["success"]["total"]) == ("noop", 0, 1)
    assert found["replies"] == {"": 1}
    assert "1 of 1 episodes" in err


def test_what_json_lacks_is_null_or_text(capsys) -> None:
    print_json({"nan": float("nan"), 1: (float("inf"), tmp := ValueError("x")), "text": "é"})
    assert json.loads(capsys.readouterr().out) == {"nan": None, "1": [None, str(tmp)], "text": "é"}


def test_reserved_output_goes_to_standard_error(capsys) -> None:
    for as_json in (True, False):
        with reserve_output(as_json):
            print("progress")
        out, err = capsys.readouterr()
        assert (out, err) == (("", "progress\n") if as_json else ("progress\n", ""))


@pytest.mark.parametrize("suite", ["basics", "miniwob"])
def test_a_piped_table_has_one_line_per_row_and_whole_names(suite, monkeypatch, cli) -> None:
    if suite == miniwob.SUITE and (reason := miniwob.unavailable_reason()):
        pytest.skip(reason)
    monkeypatch.setenv("COLUMNS", "40")
    names = family_registry.families(suite)
    head, *rows, count = cli("tasks", "list", "--suite", suite).splitlines()
    assert head.split()[0] == "family"
    assert [row.split()[0] for row in rows] == [
        each["family"] for each in json.loads(cli("tasks", "list", "--suite", suite, "--json"))
    ]
    assert {row.split()[0] for row in rows} == set(names)
    assert all(names[row.split()[0]].summary in row for row in rows)
    assert count == f"{len(names)} families"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_narrow_terminal_does_not_cut_the_first_column(monkeypatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", "50")
    names = ["miniwob/click-checkboxes-transfer", "short"]
    print_columns(("family", "description"), [(name, "words " * 20) for name in names])
    lines = terminal.getvalue().splitlines()
    assert all(any(name in line for line in lines) for name in names)
    assert len(lines) > 3, "the description is wrapped"

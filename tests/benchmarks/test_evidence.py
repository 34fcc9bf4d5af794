"""Pages of evidence say what was run, on what, and what came of it."""

import pytest

from benchmarks import evidence


def test_every_benchmark_is_known_and_learning_comes_last():
    names = evidence.names()
    assert {"desktop", "engine", "episodes", "exactness", "recorder", "image_sensitivity"} <= set(names)
    assert names[-1] == "learning"
    assert "evidence" not in names
    assert "thresholds" not in names
    assert evidence.words("image_sensitivity") == ["-m", "benchmarks.image_sensitivity", "--full"]


def test_options_follow_the_name_of_a_benchmark_and_are_part_of_the_pages_name():
    assert evidence.words("faults 19") == ["-m", "benchmarks.faults", "--full", "19"]
    assert evidence.title_of("training_soak --desktops local") == "training_soak_desktops_local"
    assert evidence.title_of("image_sensitivity") == "image_sensitivity"
    assert evidence.title_of("learning_methods --teacher runs/mine/step-000017") == "learning_methods_teacher"


@pytest.mark.parametrize(("code", "figure"), [(0, "3.0 ms"), (1, "FAIL")])
def test_a_page_contains_command_hardware_commit_output_and_exit_code(tmp_path, monkeypatch, capsys, code, figure):
    program = f"import sys; print('first'); print(); print({figure!r}); sys.exit({code})"
    monkeypatch.setattr(evidence, "words", lambda name: ["-c", program])
    assert evidence.run("example", tmp_path) == code
    page = (tmp_path / "example.md").read_text()
    assert page.startswith("# example\n\n- command: python -c ")
    assert "\n- hardware: " in page
    assert "\n- commit: " in page
    assert f"\n- exit code: {code}\n\n```text\nfirst\n\n{figure}\n```\n" in page
    assert figure in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["example.md"]


def test_a_table_that_was_printed_is_a_table_of_the_page():
    page = evidence.page_of(
        "example", {"command": "x"}, ["first", "| a | b |", "| --- | --- |", "| 1 | 2 |", "", "last"]
    )
    table = "| a | b |\n| --- | --- |\n| 1 | 2 |"
    assert page == f"# example\n\n- command: x\n\n```text\nfirst\n```\n\n{table}\n\n```text\nlast\n```\n"


def test_an_unknown_benchmark_is_refused(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["evidence", "nonsense"])
    with pytest.raises(SystemExit) as ended:
        evidence.main()
    assert ended.value.code == 2
    assert "unknown benchmark nonsense" in capsys.readouterr().err

"""Command line: user errors are one line and exit code 2, and write nothing; Ctrl-C leaves no process."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import training_fixture
from command_line import called, with_settings
from patience import limit

from deskhand.cli import common, demo
from deskhand.store.run import EpisodeRow, Run

ROOT = Path(__file__).parent.parent
CONFIG = str(ROOT / "configs" / "tiny_cpu.yaml")


def run_python(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        check=False,
        stdin=subprocess.DEVNULL,
    )


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return training_fixture.checkpoint(tmp_path_factory.mktemp("checkpoint"))


WRONG = {
    "an unknown command": (["bogus"], 'Unknown command "bogus"'),
    "an unknown option": (["doctor", "--fix"], "--fix"),
    "a config file that is not there": (["train", "absent.yaml", "{new}"], "absent.yaml: cannot read the config file"),
    "no config file": (["train"], "deskhand train tiny_cpu runs/mine"),
    "no run directory": (["train", CONFIG], "CONFIG and RUN_DIR are required"),
    "an unknown key": (["train", CONFIG, "{new}", "--set", "loop.stps=1"], "did you mean 'loop.total_steps'?"),
    "a wrong type": (
        ["train", CONFIG, "{new}", "--set", "loop.total_steps=many"],
        "--set loop.total_steps=many: loop.total_steps: should be a valid integer",
    ),
    "a wrong field of a task": (
        ["train", CONFIG, "{new}", "--set", "suite.families=[nope]"],
        "unknown family 'nope' in suite",
    ),
    "an unknown task": (["tasks", "show", "nope"], "unknown family 'nope' in suite 'basics'; families: "),
    "a seed outside its split": (["tasks", "show", "dialog_choice", "-5"], "-5"),
    "a model that is not there": (["train", CONFIG, "{new}", "--set", "model=/no/such"], "/no/such: no such folder"),
    "settings that cannot be trained": (
        ["train", CONFIG, "{new}", "--set", "agent.temperature=0"],
        "agent.temperature 0 makes all episodes of a group identical",
    ),
    "a folder without a run": (["report", "{new}"], "no such folder; pass a run directory"),
    "resuming nothing": (["demo", "{new}", "--resume"], "no run to resume in "),
    "evaluating nothing": (["eval", "{new}"], "contains no run"),
    "recording what is no address": (
        ["record", "--upstream", "localhost", "--out", "{new}"],
        "http://127.0.0.1:8000/v1",
    ),
    "recording a port that is none": (
        ["record", "--upstream", "http://localhost:99999/v1", "--out", "{new}"],
        "http://127.0.0.1:8000/v1",
    ),
    "recording for a model that is not there": (
        ["record", "--upstream", "http://127.0.0.1:9", "--out", "{new}", "--checkpoint", "/no/such", "--", "true"],
        "/no/such: no such folder",
    ),
    "recording a program that is not there": (
        ["record", "--upstream", "http://127.0.0.1:9", "--out", "{run}", "--", "/no/such/program"],
        "/no/such/program: cannot be started",
    ),
    "a profile of a run": (["train", "--resume", "{run}", "--profile", "smoke"], "profiles belong to a config file"),
    "a config for a resumed run": (["train", CONFIG, "--resume", "{run}"], "a resumed run keeps its settings"),
    "a folder with other files": (["train", CONFIG, "{full}"], "contains other files (metrics.jsonl)"),
    "options that exclude each other": (["demo", "--resume", "--restart"], "mutually exclusive"),
}


@pytest.mark.parametrize("name", WRONG)
def test_user_errors_are_one_line_and_exit_code_2(name: str, tmp_path, cli_error) -> None:
    arguments, expected = WRONG[name]
    new, run = tmp_path / "new", tmp_path / "run"
    if "{run}" in arguments:
        Run.create(run, {"config": {}}).close()
    full = tmp_path / "full"
    full.mkdir()
    (full / "metrics.jsonl").write_text("somebody's own")
    places = {"{new}": str(new), "{run}": str(run), "{full}": str(full)}
    assert expected in cli_error(*(places.get(argument, argument) for argument in arguments))
    assert not new.exists()
    assert [(path.name, path.read_text()) for path in full.iterdir()] == [("metrics.jsonl", "somebody's own")]


@pytest.mark.parametrize(
    "arguments",
    [
        ["record", "--upstream", "http://127.0.0.1:9", "--out", "{file}/out", "--", "true"],
        ["record", "--upstream", "http://127.0.0.1:9", "--out", "{long}", "--", "true"],
        ["dev", "build-tiny", "--work", "{file}/work", "--out", "{file}/out"],
        ["train", CONFIG, "{long}"],
        ["export", "{run}", "--episodes", "--out", "{file}/out"],
    ],
    ids=" ".join,
)
def test_unwritable_paths_are_one_line_errors(arguments: list[str], tmp_path, cli_error) -> None:
    (tmp_path / "file").write_text("kept")
    Run.create(tmp_path / "run", {"config": {}}).close()
    places = {"{file}": str(tmp_path / "file"), "{long}": str(tmp_path / ("x" * 300)), "{run}": str(tmp_path / "run")}
    for name, place in places.items():
        arguments = [argument.replace(name, place) for argument in arguments]
    err = cli_error(*arguments)
    assert str(tmp_path) in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "run"]
    assert (tmp_path / "file").read_text() == "kept"


def test_record_exits_with_the_agents_exit_code(monkeypatch, capfd, tmp_path) -> None:
    command = ["record", "--upstream", "http://127.0.0.1:9", "--out", str(tmp_path / "out"), "--", "sh", "-c"]
    code, out, err = called(monkeypatch, capfd, *command, "echo $OPENAI_BASE_URL; exit 7")
    assert code == 7, err
    assert out.startswith("http://127.0.0.1:")
    assert called(monkeypatch, capfd, *command, "kill -9 $$")[0] == 128 + 9


def test_end_of_input_at_the_demos_question_is_an_interrupt(monkeypatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    with pytest.raises(KeyboardInterrupt):
        demo.ask("resume? ")


def test_an_unreadable_checkpoint_is_one_line_and_leaves_no_run(tmp_path, checkpoint: Path, cli_error) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    for path in checkpoint.iterdir():
        (broken / path.name).write_bytes(path.read_bytes())
    (broken / "model.safetensors").write_bytes(b"not weights")
    err = cli_error("train", CONFIG, str(tmp_path / "new"), "--set", f"model={broken}")
    assert f"{broken / 'model.safetensors'}: unreadable" in err
    assert not (tmp_path / "new").exists()


def test_a_desktop_that_cannot_start_leaves_no_run(monkeypatch, tmp_path, checkpoint, cli_error) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for program in ("prlimit", "setpriv", "true"):
        (programs / program).symlink_to(shutil.which(program) or program)
    monkeypatch.setenv("PATH", str(programs))
    err = cli_error("train", CONFIG, str(tmp_path / "new"), "--set", f"model={checkpoint}")
    assert "apt-get install xvfb" in err
    assert not (tmp_path / "new").exists()


def test_missing_package_is_named_with_a_fix(tmp_path) -> None:
    program = (
        "import sys; sys.modules['torch'] = None\n"
        f"sys.argv = ['deskhand', 'train', {CONFIG!r}, {str(tmp_path / 'new')!r}]\n"
        "from deskhand.cli.main import main; main()"
    )
    done = run_python(program)
    assert done.returncode == 2
    assert (
        done.stderr
        == "error: the Python package torch is not installed; run make setup, or pip install 'deskhand[train]'\n"
    )
    assert not (tmp_path / "new").exists()


def test_the_command_line_imports_only_what_a_command_needs() -> None:
    heavy = ("numpy", "PIL", "xcffib", "pydantic", "openai", "yaml", "deskhand.desktop", "deskhand.tasks")
    done = run_python(f"import sys, deskhand.cli.main\nprint([name for name in {heavy!r} if name in sys.modules])")
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_help_and_task_lists_need_no_torch() -> None:
    program = (
        "import sys\nfrom deskhand.cli.main import app\n"
        "app(['--help'], result_action='return_value', exit_on_error=False)\n"
        "assert not {'asyncio', 'rich.markdown'} & set(sys.modules)\n"
        "app(['tasks', 'list'], result_action='return_value', exit_on_error=False)\n"
        "print('torch' in sys.modules)"
    )
    done = run_python(program, COLUMNS="200")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("False")
    for word in ("demo", "train", "eval", "doctor", "report", "tasks", "dev", "calculator_number", "galculator"):
        assert word in done.stdout


def test_tasks_show_prints_the_instruction(cli) -> None:
    out = cli("tasks", "show", "dialog_choice", "7", "--split", "test")
    assert "basics/dialog_choice/1000000007" in out
    assert "test" in out


def test_an_untrained_model_is_evaluated_and_reported(tmp_path, checkpoint: Path, cli, cli_error) -> None:
    folder = tmp_path / "run"
    (tmp_path / "small.yaml").write_text(f"model: {checkpoint}\n")
    settings = ("suite.families=[dialog_choice]", "agent.max_new_tokens=2", "agent.max_consecutive_errors=1")
    loop = ("loop.max_concurrent_episodes=1", "desktop.prewarm=0", "evaluation.num_episodes=2", "loop.total_steps=1")
    overrides = with_settings(*settings, *loop)
    out = cli("eval", str(folder), "--config", str(tmp_path / "small.yaml"), *overrides)
    assert "dialog_choice" in out
    assert "/2" in out
    page = (folder / "report.html").read_text()
    data = json.loads(page.split('id="data">')[1].split("</script>")[0])
    assert {episode["phase"] for episode in data["episodes"]} == {"before"}
    assert all(episode["steps"][0]["frame"] in data["frames"] for episode in data["episodes"])
    out = cli("report", str(folder), "--out", str(tmp_path / "other.html"))
    assert out.strip() == str(tmp_path / "other.html")
    err = cli_error("train", str(tmp_path / "small.yaml"), str(folder))
    assert "already contains a run; resume it or choose another folder" in err


@pytest.mark.parametrize("played", [False, True])
def test_an_interrupt_names_the_command_that_resumes(played: bool, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(sys, "argv", ["deskhand", "eval", "my runs", "--policy", "noop"])
    run = Run.create(tmp_path / "run", {"config": {}})
    if played:
        run.start_episode(EpisodeRow("e", "noop", None, 0, "t", "f", 0, "test", "in_flight"))
    with pytest.raises(KeyboardInterrupt) as caught, common.run_context(run, common.current_command()):
        raise KeyboardInterrupt
    hint = "resume with: deskhand eval 'my runs' --policy noop" if played else "nothing to resume"
    assert str(caught.value) == f"interrupted; {hint}"
    assert (tmp_path / "run").exists() == played


def test_an_interrupted_run_ends_with_130_and_leaves_no_process(tmp_path, checkpoint: Path) -> None:
    command = [sys.executable, "-m", "deskhand", "train", CONFIG, str(tmp_path / "run")]
    command += with_settings(f"model={checkpoint}", "loop.max_concurrent_episodes=2", "suite.families=[dialog_choice]")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + limit(90)
    frames = tmp_path / "run" / "frames"
    while not list(frames.glob("*/*.zst")) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.2)
    family = psutil.Process(process.pid).children(recursive=True)
    assert any(child.name() == "Xvfb" for child in family), process.communicate(timeout=limit(5))
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=limit(60))
    assert process.returncode == 130, err
    assert err.strip() == f"interrupted; resume with: deskhand train --resume {tmp_path / 'run'}"
    _, alive = psutil.wait_procs(family, timeout=limit(10))
    assert not alive, [child.cmdline() for child in alive]

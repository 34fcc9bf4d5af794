"""`deskhand eval` with every kind of policy, on real desktops: the same tasks, resumable after SIGKILL, keys nowhere on
disk."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import literal_model
import pytest
import uvicorn
from command_line import called, with_settings
from patience import limit
from test_cli import ROOT

from deskhand.config.load import AGENT_SET, load_config
from deskhand.recipes.evaluate import resolve_policy
from deskhand.recorder.images import ImageCache
from deskhand.recorder.recorder import Recorder
from deskhand.recorder.renderer import ChatRenderer
from deskhand.recorder.server import create_app
from deskhand.rollout.run_writer import load_result
from deskhand.store.run import Run

SMALL = with_settings("suite.families=[dialog_choice]", "loop.max_concurrent_episodes=2", "desktop.prewarm=0")


def test_oracle_and_noop_bound_the_suite(tmp_path, cli) -> None:
    folder = tmp_path / "run"
    few = [*SMALL, *with_settings("evaluation.num_episodes=2", "evaluation.save_end_states=true")]
    out = cli("eval", str(folder), "--policy", "oracle", "--samples-per-task", "2", *few)
    assert "100.0 % [34.2, 100.0] 4/4" in out, "repeats of two tasks are worth two tries"
    assert "pass@2" in out
    out = cli("rescore", str(folder / "end_states"))
    assert out.count(": 1 -> 1\n") == 4
    assert "4 end states rescored, 0 changed" in out
    out = cli("eval", str(folder), "--policy", "noop")
    assert "0.0 % [0.0, 65.8] 0/2" in out
    out = cli("tasks", "measure", "--run", str(folder), "--out", str(tmp_path / "measured.json"))
    assert out == "dialog_choice: noop 0/2, oracle 4/4\n"
    with Run.open(folder, read_only=True) as run:
        assert {row.phase for row in run.episodes()} == {"oracle", "noop"}
        assert {(row.task_id, row.member) for row in run.episodes("noop")} <= {
            (row.task_id, row.member) for row in run.episodes("oracle")
        }


def test_the_same_command_resumes_an_evaluation_after_sigkill(tmp_path, cli) -> None:
    folder = tmp_path / "run"
    more = with_settings("evaluation.num_episodes=6", "loop.max_concurrent_episodes=1")
    command = ["eval", str(folder), "--policy", "oracle", *SMALL, *more]
    process = subprocess.Popen(
        [sys.executable, "-m", "deskhand", *command],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    deadline, done = time.monotonic() + limit(120), 0
    while done < 2 and time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)
        if (folder / "run.sqlite").exists():
            with Run.open(folder, read_only=True) as run:
                done = len(run.episodes("oracle", "scored"))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert 2 <= done < 6
    out = cli(*command)
    assert "6/6" in out
    with Run.open(folder, read_only=True) as run:
        scored = run.episodes("oracle", "scored")
        assert len(scored) == len({row.task_id for row in scored}) == 6
        assert all(row.cause == "infrastructure" for row in run.episodes("oracle", "errored"))


@pytest.fixture
def endpoint() -> Iterator[tuple[str, str]]:
    """(address, key) of the bundled policy behind a real HTTP server."""
    from deskhand.engines.hf import HfEngine
    from deskhand.models.load import load as load_model

    model = load_model("tiny")
    recorder = Recorder(ChatRenderer(model.tokenizer), HfEngine(model), ImageCache(model.image_processor))
    key = recorder.open_session("from outside")
    config = uvicorn.Config(
        create_app(recorder, secrets.token_urlsafe(32)), host="127.0.0.1", port=0, log_level="error"
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/v1", key
    finally:
        server.should_exit = True
        thread.join()
        recorder.close()


def test_an_endpoint_is_evaluated_and_its_key_is_not_stored(
    monkeypatch, tmp_path, endpoint: tuple[str, str], cli
) -> None:
    address, key = endpoint
    folder = tmp_path / "run"
    monkeypatch.setenv("OPENAI_API_KEY", key)
    arguments = ["--policy", address, "--served-model-name", "box", *SMALL, "--set", "evaluation.num_episodes=2"]
    arguments += with_settings("agent.prompt_style=compact", "agent.max_new_tokens=64")  # it is the bundled policy
    out = cli("eval", str(folder), *arguments)
    assert "/2" in out
    with Run.open(folder, read_only=True) as run:
        found = [load_result(run, row.id) for row in run.episodes()]
        assert all(step.text for result in found for step in result.transcript.steps)
        assert all(not result.graph.calls for result in found)
        assert all(
            path.exists()
            for result in found
            for step in result.transcript.steps
            for path in [run.frames.path(step.frame_sha256)]
        )
    assert not [path for path in folder.rglob("*") if path.is_file() and key.encode() in path.read_bytes()]


def test_a_model_that_knows_only_its_prompt_solves_a_task(tmp_path, cli) -> None:
    folder = tmp_path / "run"
    few = with_settings("suite.families=[terminal_run]", "evaluation.num_episodes=1", "desktop.prewarm=0")
    with literal_model.served() as (model, address):
        out = cli("eval", str(folder), "--policy", address, "--served-model-name", "fake", *few)
    assert "100.0 % [20.7, 100.0] 1/1" in out
    assert "agent.action_format=deskhand_json agent.prompt_style=full agent.max_new_tokens=512" in out
    assert "warning" not in out
    first = model.asked[0]
    assert first["messages"][0]["role"] == "system"
    assert "x and y are 0..1000" in first["messages"][0]["content"]
    assert first["max_tokens"] == 512
    with Run.open(folder, read_only=True) as run:
        assert {row.phase for row in run.episodes()} == {f"fake at {address.removeprefix('http://')}"}


def test_replies_that_nothing_could_parse_are_a_warning_that_names_the_settings(tmp_path, cli) -> None:
    few = with_settings("suite.families=[terminal_run]", "evaluation.num_episodes=4", "desktop.prewarm=0")
    told = with_settings("agent.prompt_style=compact", "loop.max_concurrent_episodes=1")
    with literal_model.served() as (model, address):
        out = cli("eval", str(tmp_path / "run"), "--policy", address, "--served-model-name", "fake", *few, *told)
    assert model.asked[0]["messages"][0]["role"] == "user"
    assert "none of 12 replies could be parsed" in out
    early = "warning: no reply of the first 3 episodes could be parsed"
    assert out.count(early) == 1
    assert out.index(early) < out.index("4 of 4 episodes")
    assert "set agent.action_format to the format of the model and agent.prompt_style=full" in " ".join(out.split())
    assert literal_model.PROSE in out


def test_an_unreachable_endpoint_is_not_a_success_rate_of_zero(monkeypatch, capsys, tmp_path) -> None:
    model = ["--policy", "http://127.0.0.1:1/v1", "--served-model-name", "nobody"]
    arguments = [*model, *SMALL, *with_settings("evaluation.num_episodes=1")]
    code, out, err = called(monkeypatch, capsys, "eval", str(tmp_path / "run"), *arguments)
    assert (code, err.count("\n")) == (2, 1), err
    assert "all 1 episodes errored; last error: the model's endpoint http://127.0.0.1:1/v1/ failed" in err
    assert "0 of 1 episodes, 0 successes, 3 errored attempts" in out


ENDPOINT = ["engine.backend=openai", "engine.base_url=http://host/v1", "engine.served_model_name=m"]
WRONG = {
    "a key in the address": (["--policy", "http://me:secret@127.0.0.1:1/v1"], "set OPENAI_API_KEY instead"),
    "an endpoint whose model has no name": (["--policy", "http://127.0.0.1:1/v1"], "--served-model-name"),
    "no repeats": (["--policy", "oracle", "--samples-per-task", "0"], "must be at least 1"),
    "a step of a script": (
        ["--policy", "oracle", "--step", "3"],
        "--step: oracle is not a run directory; remove --step",
    ),
    "a step and a key": (
        ["--policy", "http://me:secret@127.0.0.1:1/v1", "--step", "3"],
        "must not contain credentials",
    ),
    "an address that is none": (["--policy", "http://[::1", "--served-model-name", "m"], "invalid URL"),
    "a name for no endpoint": (["--policy", "oracle", "--served-model-name", "m"], "requires --policy with the URL"),
    "a profile without a file": (["--policy", "oracle", "--profile", "smoke"], "profiles belong to a config file"),
    "weights behind an endpoint": (
        ["--policy", "tiny", *with_settings(*ENDPOINT)],
        "engine.backend openai evaluates its endpoint; remove --policy",
    ),
    "a step of a model": (["--policy", "tiny", "--step", "3"], "remove --step"),
    "nothing to play": (
        ["--policy", "oracle", "--set", "evaluation.num_episodes=0"],
        "evaluation.num_episodes: must be above 0",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_policies_that_cannot_be_evaluated_are_one_line_errors(name: str, tmp_path, cli_error) -> None:
    arguments, expected = WRONG[name]
    err = cli_error("eval", str(tmp_path / "new"), *arguments, *SMALL)
    assert expected in err
    assert "secret" not in err
    assert not (tmp_path / "new").exists()


def test_results_of_different_settings_have_different_names(tmp_path) -> None:
    settings = load_config()
    with Run.create(tmp_path / "run", {"config": settings.model_dump(mode="json"), AGENT_SET: []}) as run:
        assert resolve_policy(settings, run, None).name == "version-0"
        greedy = load_config(
            None, ["evaluation.temperature=0", "evaluation.num_episodes=3", "loop.max_concurrent_episodes=1"]
        )
        assert resolve_policy(greedy, run, None).name == "version-0 (evaluation.temperature=0.0)"
        blind = load_config(None, ["agent.noise_images=true"])
        assert resolve_policy(blind, run, "oracle").name == "oracle (agent.noise_images=True)"
        other = load_config(None, ["model=Qwen/Qwen3-VL-4B-Instruct"])
        found = resolve_policy(other, run, None)
        assert found.name == "version-0 (model=Qwen3-VL-4B-Instruct)"
        assert found.agent is not None
        assert found.agent.action_format == "qwen3_vl"
        assert resolve_policy(other, run, "oracle").name == "oracle", "it is not asked"
        remote = load_config(None, ENDPOINT)
        assert (
            resolve_policy(remote, run, None).name
            == "version-0 (engine.backend=openai, engine.base_url=http://host/v1, engine.served_model_name=m)"
        )
        longer = load_config(None, ["suite={format: osworld, path: folder, max_episode_steps: 30}"])
        assert resolve_policy(longer, run, "noop").name == "noop (suite.max_episode_steps=30)"
    with Run.open(tmp_path / "run") as run:
        other = load_config()
        assert resolve_policy(other, run, str(tmp_path / "run")).name == "run version 0"
        assert resolve_policy(other, run, "https://one/v1", served_model_name="m").name == "m at one/v1"
        told = load_config(None, ["agent.prompt_style=compact"])
        named = resolve_policy(told, run, "https://one/v1", served_model_name="m").name
        assert named == "m at one/v1 (agent.prompt_style=compact)", "not the results of the prompt that fits"


def test_the_same_command_resumes_an_evaluation_and_other_settings_are_refused(tmp_path, cli, cli_error) -> None:
    folder, config = tmp_path / "run", tmp_path / "few.yaml"
    config.write_text(
        "suite: {families: [dialog_choice]}\nevaluation: {num_episodes: 1}\nloop: {max_concurrent_episodes: 1}\n"
        "desktop: {prewarm: 0}\n"
    )
    command = ["eval", str(folder), "--policy", "noop", "--config", str(config)]
    for _ in range(2):
        out = cli(*command)
        assert "0/1" in out
    with Run.open(folder, read_only=True) as run:
        assert len(run.episodes()) == 1
    config.write_text(config.read_text().replace("num_episodes: 1", "num_episodes: 2"))
    err = cli_error(*command)
    assert "evaluation.num_episodes was 1, now 2" in err
    err = cli_error("eval", str(folder), "--policy", "noop", "--profile", "smoke")
    assert "profiles belong to a config file" in err


def test_weights_in_folders_of_one_name_are_distinguished(tmp_path) -> None:
    """Else the figures of the first would stand for the second."""
    settings = load_config()
    for place, weights in (("a", b"1"), ("b", b"22")):
        (tmp_path / place / "step-000001").mkdir(parents=True)
        (tmp_path / place / "step-000001" / "model.safetensors").write_bytes(weights)
    one, two = (str(tmp_path / place / "step-000001") for place in ("a", "b"))
    with Run.create(tmp_path / "run", {"config": settings.model_dump(mode="json")}) as run:
        names = [resolve_policy(settings, run, policy).name for policy in (one, two, one)]
        assert names[0] == names[2] != names[1]
        assert names[0].startswith("model step-000001 #")
        (tmp_path / "a" / "step-000001" / "model.safetensors").write_bytes(b"333")
        assert resolve_policy(settings, run, one).name not in names
        for place, digest in (("a", "x"), ("b", "y")):
            (tmp_path / place / "step-000001" / "manifest.json").write_text(digest)
        assert resolve_policy(settings, run, one).name != resolve_policy(settings, run, two).name
        (tmp_path / "b" / "step-000001" / "manifest.json").write_text("x")
        assert resolve_policy(settings, run, one).name == resolve_policy(settings, run, two).name, (
            "the same weights, copied"
        )
        assert resolve_policy(settings, run, "tiny").name == "model tiny"

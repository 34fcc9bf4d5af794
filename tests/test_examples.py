"""Every example runs at a small size, and fails with one line if what it names cannot be imported."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
import serving
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import deskhand
from deskhand.errors import ConfigError
from deskhand.store.run import Run

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
SMALL = (
    "loop.total_steps=1",
    "loop.groups_per_step=1",
    "loop.group_size=4",
    "loop.max_concurrent_episodes=4",
    "evaluation.num_episodes=0",
)
MAX_LINES = 25


def run_example(name: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=480,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def lines_of_code(path: Path) -> int:
    """Lines that are neither empty, comments, nor the module's docstring."""
    text = path.read_text(encoding="utf-8")
    if text.startswith('"""'):
        text = text.split('"""', 2)[2]
    return sum(bool(line.strip()) and not line.strip().startswith("#") for line in text.splitlines())


def test_there_are_ten_examples_of_at_most_25_lines_of_code():
    files = [path for path in EXAMPLES.iterdir() if path.suffix in (".py", ".yaml")]
    assert len(files) == 10
    too_long = {path.name: count for path in files if (count := lines_of_code(path)) > MAX_LINES}
    assert not too_long


def test_own_task_is_played_and_judged(tmp_path):
    assert "of 2 episodes" in run_example("own_task.py", str(tmp_path / "run"))


def test_own_yaml_task_is_solved_by_its_oracle(tmp_path):
    tasks = deskhand.load_tasks(EXAMPLES, format="deskhand", split="test")
    report = deskhand.evaluate("oracle", tasks=tasks, run_dir=tmp_path / "run")
    assert (report.success.hits, report.success.total) == (1, 1)
    assert (tmp_path / "run" / "report.html").is_file()


def test_own_agent_plays_with_its_own_prompt(tmp_path):
    run_example("own_agent.py", str(tmp_path / "run"))
    with deskhand.open_run(tmp_path / "run") as run:
        assert run.metadata["config"]["agent"]["class"].endswith("own_agent.py:PlainAgent")
        episode = deskhand.load_episode(run, run.episodes(state="scored")[0].id)
    assert episode.steps
    assert episode.steps[0].text


def test_own_reward_is_trained_beside_the_judges_score(tmp_path):
    out = run_example("own_reward.py", str(tmp_path / "run"), *SMALL)
    assert "step 1" in out
    with Run.open(tmp_path / "run", read_only=True) as run:
        trained = [deskhand.load_episode(run, row.id) for row in run.episodes("train", "trained")]
    assert trained
    for episode in trained:
        assert episode.reward == pytest.approx(max(0.0, episode.score - 0.01 * len(episode.steps)))
        assert "judge" in episode.reward_terms


def test_own_algorithm_trains_a_step(tmp_path):
    assert "1 steps" in run_example("own_algorithm.py", str(tmp_path / "run"), *SMALL)


def test_training_from_python_reads_its_episodes_again(tmp_path):
    out = run_example("train_from_python.py", str(tmp_path / "run"), *SMALL)
    assert "step 1 of 1" in out
    assert "score" in out
    assert (tmp_path / "run" / "report.html").is_file()


async def test_a_served_model_is_evaluated(tmp_path):
    asked: list[dict] = []

    async def chat(request: Request) -> JSONResponse:
        asked.append(await request.json())
        message = {"role": "assistant", "content": '{"op":"done"}'}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        return JSONResponse({"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]})

    app = Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"])])
    async with serving.on_a_port(app) as url:
        arguments = (str(tmp_path / "run"), f"{url}/v1", "m", "deskhand_json", "1")
        out = await asyncio.to_thread(run_example, "evaluate_served_model.py", *arguments)
    assert "0.0%" in out
    assert {body["model"] for body in asked} == {"m"}
    assert all(body["messages"][0]["role"] == "system" for body in asked), "an endpoint is told the action format"


MISSPELLED = {
    "own_task.py": (["suite.format=python", "suite.path=examples/own_tsk.py"], "did you mean examples/own_task.py?"),
    "own_task.yaml": (["suite.format=deskhand", "suite.path=exampls"], "suite.path: exampls"),
    "own_agent.py": (
        ["agent.class=examples/own_agent.py:PlainAgnt"],
        "agent.class: cannot import examples/own_agent.py:PlainAgnt: module examples/own_agent.py has no attribute "
        "PlainAgnt; did you mean PlainAgent?",
    ),
    "own_reward.py": (
        ["reward=examples/own_rewrd.py:shorter"],
        "reward: cannot import examples/own_rewrd.py:shorter: no file",
    ),
    "own_algorithm.py": (["trainer.algorithm=examples/own_algorithm.py:median_base"], "did you mean median_baseline?"),
    "train_from_python.py": (["agent.class=my_packge.agents:MyAgent"], "no module named my_packge"),
    "evaluate_served_model.py": (["engine.backend=vlm"], "did you mean 'vllm'?"),
}


@pytest.mark.parametrize("name", MISSPELLED)
def test_a_misspelled_import_path_is_one_line_before_anything_starts(tmp_path, name):
    overrides, message = MISSPELLED[name]
    with pytest.raises(ConfigError) as caught:  # noqa: PT012
        config = deskhand.load_config(ROOT / "configs" / "tiny_cpu.yaml", overrides=overrides)
        deskhand.train(config, run_dir=tmp_path / "run")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()

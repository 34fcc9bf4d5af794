"""The real verifiers plays Deskhand's tasks on real desktops and rewards them; an outage is no reward."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import serving
from environments import ROOT, packages_of
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from deskhand.tasks.suites import family_registry
from deskhand.tasks.task import seed_for

REWARD = """
import deskhand

@deskhand.reward
def steps(episode):
    return 0.25 * len(episode.steps)
"""
CLICK, DONE = '{"op":"click","x":500,"y":500}', '{"op":"done"}'


class Endpoint:
    """A model that clicks once and is done; to a request with the text `broken` it answers with an error."""

    def __init__(self, broken: str) -> None:
        self.broken, self.models = broken, set[str]()
        self.app = Starlette(routes=[Route("/v1/chat/completions", self.answer, methods=["POST"])])

    async def answer(self, request: Request) -> JSONResponse:
        asked = await request.json()
        self.models.add(asked["model"])
        talk = json.dumps(asked["messages"])
        if self.broken in talk:
            return JSONResponse({"error": {"message": "the engine is gone"}}, 400)
        said = DONE if json.dumps(CLICK)[1:-1] in talk else CLICK
        choice = {"index": 0, "message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        head = {"id": "one", "object": "chat.completion", "created": 0, "model": asked["model"]}
        return JSONResponse({**head, "choices": [choice], "usage": usage})


def play(program: Path, folder: Path, *words: str) -> str:
    """The output of a program with verifiers' packages; its tasks are rewarded by their number of steps."""
    (folder / "steps_reward.py").write_text(REWARD)
    environment = {
        **os.environ, "PYTHONPATH": f"{packages_of('verifiers')}:{ROOT}", "OPENAI_API_KEY": "none",
        "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
    }  # fmt: skip
    settings = ["desktop.prewarm=0", f"reward={folder}/steps_reward.py:steps"]
    done = subprocess.run(
        [sys.executable, str(program), *words, *settings],
        capture_output=True, text=True, check=False, env=environment, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


async def test_verifiers_plays_and_rewards_the_tasks_and_an_outage_has_no_reward(tmp_path: Path) -> None:
    model = Endpoint(broken=instruction_of(2))
    async with serving.on_a_port(model.app) as url:
        program = Path(__file__).with_name("play_with_verifiers.py")
        out = await asyncio.to_thread(play, program, tmp_path, f"{url}/v1")
    found = json.loads(out.splitlines()[-1])
    assert [one["key"] for one in found] == [f"train/terminal_run/{number}" for number in range(3)]
    for one in found[:2]:
        assert (one["ok"], one["error"], one["replies"]) == (True, None, [CLICK, DONE]), one
        assert one["rewards"] == {"judge": 0.5}
        assert one["info"]["deskhand"] == {"reward": 0.5, "score": 0.0, "stop_reason": "done", "num_steps": 2}
        assert one["images"] == ["data:image/png;base64,"] * 2
        assert one["prompt"]
    assert not found[2]["ok"]
    assert "the engine is gone" in found[2]["error"]
    assert all(value is None for value in found[2]["rewards"].values()), "an outage is no reward of 0"
    assert model.models == {"scripted"}


async def test_the_example_plays_two_tasks(tmp_path: Path) -> None:
    model = Endpoint(broken="nothing of this")
    async with serving.on_a_port(model.app) as url:
        example = ROOT / "examples" / "verifiers_desktop.py"
        out = await asyncio.to_thread(play, example, tmp_path, f"{url}/v1", "my-model")
    assert out.splitlines()[-2:] == [f"train/terminal_run/{number} 2 turns, reward 0.5" for number in range(2)]
    assert model.models == {"my-model"}


def instruction_of(variant: int) -> str:
    task = family_registry.make_task("terminal_run", seed_for("train", variant))
    return json.dumps(task.instruction)[1:-1]

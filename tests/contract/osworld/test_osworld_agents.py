"""Agents of OSWorld (`mm_agents` from PyPI), unmodified, on our `DesktopEnv`, behind a model that follows a script.

The agent runs in its own environment; the loop is that of OSWorld's runner: predict, step, until DONE, evaluate.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from osworld_peer import Peer, running

from deskhand.integrations.desktop_env.env import DesktopEnv

SIZE = (640, 480)
TASK: dict[str, Any] = {
    "id": "0f6b",
    "instruction": "Write two into the file notes.txt of the home folder with the terminal.",
    "config": [{"type": "launch", "parameters": {"command": ["xterm", "-geometry", "60x20+0+0"]}}],
    "evaluator": {
        "func": "exact_match",
        "result": {"type": "vm_command_line", "command": ["cat", "/home/user/notes.txt"]},
        "expected": {"type": "rule", "rules": {"expected": "two\n"}},
        "postconfig": [{"type": "sleep", "parameters": {"seconds": 0.3}}],
    },
}
WORDS = "echo two > notes.txt"


class Model(ThreadingHTTPServer):
    """Chat completions that give the texts of a script in their order, and keep what they were asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.script: list[str] = []
        self.asked: list[dict[str, Any]] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Model

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.asked.append(asked | {"path": self.path, "key": self.headers.get("authorization")})
        text = self.server.script.pop(0)
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
        body = json.dumps(
            {"id": "1", "object": "chat.completion", "created": 0, "model": asked["model"], "choices": [choice]}
        ).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with Model() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture(scope="module")
def env() -> Iterator[DesktopEnv]:
    made = DesktopEnv(
        provider_name="docker", screen_size=SIZE, action_space="pyautogui", headless=True, require_a11y_tree=False
    )
    yield made
    made.close()


@contextmanager
def agent_process(python: Path, model: Model, folder: Path, *made: Any) -> Iterator[Peer]:
    """The agent's process."""
    variables = {
        "PATH": "/usr/bin:/bin", "HOME": str(folder), "OPENAI_BASE_URL": model.address, "OPENAI_API_KEY": "scripted",
        "DOUBAO_API_URL": f"{model.address}/v1", "DOUBAO_API_KEY": "scripted",
    }  # fmt: skip
    with running(python, folder, Path(__file__).with_name("agent_peer.py"), variables) as agent:
        agent.ask(do="make", **dict(zip(("module", "agent", "settings"), made, strict=True)))
        agent.ask(do="reset")
        yield agent


def play(env: DesktopEnv, agent: Peer, most: int = 6) -> float:
    """OSWorld's runner: one episode."""
    observation = env.reset(task_config=TASK)
    done, steps = False, 0
    while not done and steps < most:
        seen = {
            name: {"base64": base64.b64encode(part).decode()} if isinstance(part, bytes) else part
            for name, part in observation.items()
        }
        _, actions = agent.ask(do="predict", instruction=TASK["instruction"], observation=seen)
        for action in actions:
            observation, _, done, _ = env.step(action, pause=0)
            if done:
                break
        steps += 1
    return env.evaluate()


AGENTS: dict[str, tuple[str, str, str, dict[str, Any], list[str]]] = {
    "PromptAgent pyautogui": (
        "pyautogui",
        "mm_agents.agent",
        "PromptAgent",
        {"model": "gpt-4o", "observation_type": "screenshot", "action_space": "pyautogui"},
        [
            "First the terminal.\n```python\npyautogui.click(200, 150)\n```",
            f"```python\npyautogui.write('{WORDS}', interval=0.01)\npyautogui.press('enter')\n```",
            "```DONE```",
        ],
    ),
    "UITARSAgent": (
        "pyautogui",
        "mm_agents.uitars15_v1",
        "UITARSAgent",
        {
            "model": "ui-tars",
            "runtime_conf": {
                "temperature": 0.0, "top_k": -1, "top_p": 0.9, "max_tokens": 500, "infer_mode": "qwen25vl_normal",
                "history_n": 5, "prompt_style": "qwen25vl_normal", "input_swap": False, "language": "English",
                "max_pixels": 16384 * 28 * 28, "min_pixels": 100 * 28 * 28, "callusr_tolerance": 3,
            },
        },
        [
            "Thought: First the terminal.\nAction: click(start_box='<|box_start|>(200,150)<|box_end|>')",
            f"Thought: Now the words.\nAction: type(content='{WORDS}\\n')",
            "Thought: That is all.\nAction: finished()",
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", AGENTS)
def test_an_unmodified_agent_solves_a_task_and_sees_its_screens(
    judging_python: Path, env: DesktopEnv, model: Model, tmp_path: Path, name: str
) -> None:
    env.action_space, module, kind, settings, script = AGENTS[name]
    model.script, model.asked = list(script), []
    with agent_process(judging_python, model, tmp_path, module, kind, settings) as agent:
        assert play(env, agent) == 1.0
    assert model.script == [], "every reply was asked for"
    assert len(model.asked) == len(script)
    for asked in model.asked:
        assert asked["path"] == "/v1/chat/completions"
        images = [part for message in asked["messages"] for part in message["content"] if part["type"] == "image_url"]
        shown = base64.b64decode(images[-1]["image_url"]["url"].partition(",")[2])
        assert shown.startswith(b"\x89PNG")
        assert (int.from_bytes(shown[16:20], "big"), int.from_bytes(shown[20:24], "big")) == SIZE
    assert TASK["instruction"] in json.dumps(model.asked[0]["messages"])


def test_an_agent_that_gives_up_scores_nothing(
    judging_python: Path, env: DesktopEnv, model: Model, tmp_path: Path
) -> None:
    env.action_space, module, kind, settings, _ = AGENTS["PromptAgent pyautogui"]
    model.script, model.asked = ["```FAIL```"], []
    with agent_process(judging_python, model, tmp_path, module, kind, settings) as agent:
        assert play(env, agent) == 0.0
    assert env.action_history == ["FAIL"]

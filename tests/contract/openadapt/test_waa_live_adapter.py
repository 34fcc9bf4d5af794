"""The fake of WAA's servers, checked by OpenAdapt's own `WAALiveAdapter` from PyPI: probe, look, act, ask, evaluate."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from environments import python_of
from fake_waa import FakeEvaluate, FakeWaa
from patience import limit
from serving import on_a_port


@pytest.fixture(scope="session")
def python() -> Path:
    return python_of("openadapt-live")


async def test_their_adapter_plays_an_episode_on_the_fake(python, tmp_path):
    fake = FakeWaa(tmp_path / "vm")
    evaluate = FakeEvaluate(fake.guest)
    task = {
        "id": "a-wos", "instruction": "Write yes into a.txt", "config": [],
        "evaluator": {"func": "exact_match", "result": {"type": "vm_file", "path": "C:\\Users\\Docker\\a.txt"},
                      "expected": {"type": "rule", "rules": {"expected": "yes"}}},
    }  # fmt: skip
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    async with on_a_port(fake.app) as address, on_a_port(evaluate.app) as judge:
        process = await asyncio.create_subprocess_exec(
            str(python), str(Path(__file__).with_name("live_peer.py")), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=(tmp_path / "peer.log").open("wb"), env=environment, limit=16 << 20, cwd=tmp_path,
        )  # fmt: skip

        async def tell(**told: Any) -> Any:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(told).encode() + b"\n")
            async with asyncio.timeout(limit(60)):
                answer = json.loads(await process.stdout.readline())
            assert "error" not in answer, answer
            return answer["value"]

        try:
            assert await tell(do="make", server=address, evaluate=judge) is True
            assert await tell(do="reset", task=task) > 100
            acted = await tell(do="step", action={"type": "click", "x": 0.5, "y": 0.25})
            assert acted["pixels"] > 100
            await tell(do="step", action={"type": "type", "text": "hello"})
            await tell(do="step", action={"type": "key", "key": "a", "modifiers": ["ctrl"]})
            await tell(do="step", action={"type": "scroll", "scroll_direction": "down", "x": 0.5, "y": 0.5})
            assert "hello" in fake.guest.text
            assert any(entry[0] == "clicked" and entry[2:4] == (160, 60) for entry in fake.guest.journal), (
                fake.guest.journal
            )
            assert any(entry[0] == "wheel" and entry[1] < 0 for entry in fake.guest.journal)
            paths = {path for _, path in fake.requests}
            assert {"/probe", "/screenshot", "/accessibility", "/execute_windows"} <= paths
            assert (await tell(do="evaluate"))["score"] == 0.0
            (fake.guest.home / "a.txt").write_text("yes")
            assert (await tell(do="evaluate"))["score"] == 1.0
        finally:
            process.kill()
            await process.wait()

"""The fake of WAA's servers, checked by OpenAdapt's own `WAALiveAdapter` from PyPI: probe, look, act, ask, evaluate."""

from __future__ import annotations

from pathlib import Path

import pytest
from environments import python_of
from fake_waa import FakeEvaluate, FakeWaa
from osworld_peer import running
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
    script = Path(__file__).with_name("live_peer.py")
    async with on_a_port(fake.app) as address, on_a_port(evaluate.app) as judge:
        with running(python, tmp_path, script) as peer:
            tell = peer.tell
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

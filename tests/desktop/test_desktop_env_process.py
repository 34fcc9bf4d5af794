"""The process that starts machines for us answers in order, whoever still waits for its answers."""

from __future__ import annotations

import asyncio
import sys

import pytest

from deskhand.desktop.desktop_env import DesktopEnvMachine

SLOW = """
import json, sys, time
for number, line in enumerate(sys.stdin):
    time.sleep(0.5)
    print(json.dumps({"address": f"http://machine-{number}"}), flush=True)
"""


async def test_an_answer_that_nobody_waited_for_is_not_taken_for_that_of_the_next_request():
    machine = DesktopEnvMachine(sys.executable, "docker", {}, command=["-c", SLOW])
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await machine.fresh()
    assert await machine.fresh() == "http://machine-1"
    await machine.close()

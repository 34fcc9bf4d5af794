"""The process that starts machines for us finds `desktop-env`, and answers in order, whoever still waits for its
answers."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from fake_osworld import FakeOsworld
from serving import on_a_port

from deskhand.desktop.base import DesktopSpec
from deskhand.engines.vllm import serve
from deskhand.integrations.desktop_env import machine_process
from deskhand.integrations.desktop_env.provider_pool import ProviderMachine, desktop_env_pool

SLOW = """
import json, sys, time
for number, line in enumerate(sys.stdin):
    time.sleep(0.5)
    print(json.dumps({"address": f"http://machine-{number}"}), flush=True)
"""
DESKTOP_ENV = """
class DesktopEnv:
    def __init__(self, provider_name, server_port):
        self.vm_ip, self.server_port, self.is_environment_used = provider_name, server_port, False

    def _revert_to_snapshot(self): pass
    def _start_emulator(self): pass
    def close(self): pass
"""
API_SERVER = "import server, sys\nprint(server.MARK, sys.argv[1:])"


@pytest.fixture(scope="module")
def python(tmp_path_factory) -> Path:
    """The Python of an environment whose packages have names that modules of ours have, too: `desktop_env`,
    `server`."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for path, text in {
        "desktop_env/__init__.py": "",
        "desktop_env/desktop_env.py": DESKTOP_ENV,
        "server.py": "MARK = 'the package server'",
        "vllm/entrypoints/openai/api_server.py": API_SERVER,
    }.items():
        (packages / path).parent.mkdir(parents=True, exist_ok=True)
        (packages / path).write_text(text)
    return folder / "bin" / "python"


async def test_an_answer_that_nobody_waited_for_is_not_taken_for_that_of_the_next_request():
    machine = ProviderMachine(sys.executable, "docker", {}, command=["-c", SLOW])
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await machine.fresh()
    assert await machine.fresh() == "http://machine-1"
    await machine.close()


async def test_a_pool_starts_and_reverts_machines_by_the_environments_own_desktop_env(python, tmp_path):
    fake = FakeOsworld(tmp_path)
    async with on_a_port(fake.app) as address:
        settings = {"server_port": int(address.rpartition(":")[2])}
        spec = DesktopSpec("plain", 320, 240)
        async with desktop_env_pool(1, str(python), "127.0.0.1", settings, spec=spec) as pool:
            lease = await pool.lease()
            assert (await lease.desktop.observe()).size == (320, 240)
            await pool.release(lease)


def said(python: Path, script: str | None, *arguments: str, told: str = "") -> str:
    """The first line that a script prints, run by its path as Python 3.10 runs it: its folder is the first on the
    path."""
    assert script is not None
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command, pipe = [str(python), script, *arguments], subprocess.PIPE
    with subprocess.Popen(
        command, env=environment, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(told)
        process.stdin.flush()
        return (
            process.stdout.readline()
        )  # the input is still open: vLLM's starter ends its process group when it is not


def test_the_folder_of_the_script_hides_no_desktop_env(python):
    told = '{"do": "start", "provider": "192.0.2.7", "settings": {"server_port": 5000}}\n'
    assert said(python, machine_process.__file__, told=told) == '{"address": "http://192.0.2.7:5000"}\n'


def test_the_folder_of_vllms_starter_hides_no_package(python):
    assert said(python, serve.__file__, "--port", "1") == "the package server ['--port', '1']\n"

"""Deskhand's endpoint and AReaL's proxy as processes over instant engines, called over HTTP with identical requests.

AReaL's proxy server is the original, started as AReaL's scheduler does; only the engine is replaced
(`peers.areal_stub`).
"""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2

from benchmarks.free_ports import free_port
from benchmarks.synthetic_screens import REPLY, Endpoint
from benchmarks.thresholds import ROOT
from deskhand.errors import ConfigError
from deskhand.venvs import newest_venv

START_S = 120.0
_CPUCLOCK_SCHED = 2
"""Linux; with the process id, the id that clock_getcpuclockid(3) returns."""


@dataclass(frozen=True)
class Proxy:
    """A running proxy; `path` is its chat completions path."""

    name: str
    path: str
    admin_key: str
    pid: int
    http: httpx2.AsyncClient

    async def session(self, name: str) -> dict[str, str]:
        """Open a session and return its request headers."""
        if self.name == "AReaL":
            await self._post("/grant_capacity", {})
            opened = await self._post("/rl/start_session", {"task_id": name})
        else:
            opened = await self._post("/sessions", {"session_id": name})
        return {"authorization": f"Bearer {opened['api_key']}", "content-type": "application/json"}

    async def ask(self, body: bytes, headers: dict[str, str]) -> dict[str, object]:
        """Return the message of a chat completion."""
        answer = await self.http.post(self.path, content=body, headers=headers)
        if answer.status_code != 200:
            raise RuntimeError(f"{self.name} answered {answer.status_code}: {answer.text[:300]}")
        return answer.json()["choices"][0]["message"]

    def cpu_s(self) -> float:
        """Return the CPU time of the process, to the nanosecond; /proc has it in units of 10 ms."""
        return time.clock_gettime((~self.pid << 3) | _CPUCLOCK_SCHED)

    async def _post(self, path: str, body: dict[str, object]) -> dict[str, str]:
        answer = await self.http.post(path, json=body, headers={"authorization": f"Bearer {self.admin_key}"})
        if answer.status_code != 200:
            raise RuntimeError(f"{self.name} answered {answer.status_code} to {path}: {answer.text[:300]}")
        return answer.json()


@asynccontextmanager
async def deskhand(kind: str = "bytes", root: Path = ROOT) -> AsyncIterator[Proxy]:
    """Start Deskhand's endpoint with calls and images on disk; `kind` selects its engine, `root` the checkout."""
    with tempfile.TemporaryDirectory() as folder:
        port, key = free_port(), secrets.token_urlsafe(32)
        words = [sys.executable, "-m", "benchmarks.peers.deskhand_endpoint", str(port), folder, kind]
        name = "Deskhand" if kind == "bytes" else f"Deskhand, {kind} engine"
        async with running(name, words, port, key, "/v1/chat/completions", root) as proxy:
            yield proxy


@asynccontextmanager
async def areal(python: Path) -> AsyncIterator[Proxy]:
    """Start AReaL's proxy server with the Python of AReaL's environment."""
    with tempfile.TemporaryDirectory() as folder:
        bench, port, key = Endpoint(), free_port(), secrets.token_urlsafe(32)
        bench.tokenizer.save_pretrained(folder)
        options = (
            f"--host 127.0.0.1 --port {port} --worker-index 0 --experiment-name bench --trial-name bench --role proxy"
        )
        words = [str(python), "-m", "areal.experimental.openai.proxy.proxy_rollout_server", *options.split()]
        words += ["--nfs-record-root", f"{folder}/names"]
        async with running("AReaL", words, port, key, "/chat/completions") as proxy:
            reply_ids = [*bench.renderer.encode_text(REPLY), bench.renderer.stop_ids[0]]
            kwargs = {"tokenizer_path": folder, "reply_ids": reply_ids, "admin_key": key}
            await proxy._post("/create_engine", {"engine": "areal_stub.StubEngine", "init_kwargs": kwargs})
            await proxy._post("/call", {"method": "initialize", "args": [], "kwargs": {}})
            yield proxy


@asynccontextmanager
async def running(
    name: str, words: list[str], port: int, key: str, path: str, root: Path = ROOT
) -> AsyncIterator[Proxy]:
    """Start a server, wait until it is healthy and stop it at the end."""
    environment = {**os.environ, "PYTHONPATH": f"{root}:{root / 'benchmarks' / 'peers'}", "OMP_NUM_THREADS": "1"}
    environment |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "AREAL_PROXY_WARN_ONCE": "1", "HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryFile() as log:
        process = await asyncio.create_subprocess_exec(
            *words, stdin=asyncio.subprocess.PIPE, stdout=log, stderr=log, cwd=root, env=environment
        )
        assert process.stdin is not None
        process.stdin.write(f"{key}\n".encode())
        process.stdin.close()
        transport = httpx2.AsyncHTTPTransport(trust_env=False)
        try:
            async with httpx2.AsyncClient(
                base_url=f"http://127.0.0.1:{port}", transport=transport, timeout=120
            ) as http:
                for _ in range(int(START_S / 0.2)):
                    try:
                        if (await http.get("/health")).status_code == 200:
                            break
                    except httpx2.HTTPError:
                        await asyncio.sleep(0.2)
                    if process.returncode is not None:
                        log.seek(0)
                        raise RuntimeError(f"{name} ended: {log.read()[-2000:].decode(errors='replace')}")
                else:
                    raise RuntimeError(f"{name} did not start within {START_S:g} s")
                yield Proxy(name, path, key, process.pid, http)
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()


def areal_python(make: bool) -> Path | None:
    """Return the Python of AReaL's environment, created if `make`, else None if missing."""
    try:
        return newest_venv("areal", os.environ) / "bin" / "python"
    except ConfigError:
        if not make:
            return None
    subprocess.run(["bash", str(ROOT / "scripts" / "environment"), "areal"], stdout=subprocess.DEVNULL, check=True)
    return newest_venv("areal", os.environ) / "bin" / "python"

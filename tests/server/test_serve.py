"""`deskhand serve desktops` from start to end."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import os
import re
import signal
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import httpx2
import psutil
import pytest
from certificates import self_signed
from patience import limit
from server_client import OWNER_KEY, bearer, bridge
from starlette.applications import Starlette

from deskhand.errors import ConfigError
from deskhand.server.process import ServerConfig, serve_app

ROOT = Path(__file__).parents[2]


def started(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "deskhand", "serve", "desktops", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def keep_asking(port: int) -> None:
    """Send requests until the server is gone, so that it stops while it is busy."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        while True:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=limit(10)) as reply:
                reply.read()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_server_stops_on_a_signal_and_leaves_no_process(number):
    process = started("--port", "0", "--screen", "320x240", "--prewarm", "0", DESKHAND_SERVER_API_KEY=OWNER_KEY)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        said = re.fullmatch(r"desktop server at http://127\.0\.0\.1:(\d+), 1 desktop; requires the admin key\n", line)
        assert said is not None, (line, process.communicate())
        port = int(said[1])
        request = urllib.request.Request(f"http://127.0.0.1:{port}/leases", b"{}", bearer(OWNER_KEY), method="POST")
        with urllib.request.urlopen(request, timeout=limit(30)) as reply:
            assert reply.status == 201
        guests = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
        assert guests
        asking = [threading.Thread(target=keep_asking, args=(port,)) for _ in range(3)]
        for thread in asking:
            thread.start()
        time.sleep(0.3)
        process.send_signal(number)
        assert process.wait(timeout=limit(20)) == 130
        for thread in asking:
            thread.join()
        deadline = time.monotonic() + limit(10)
        while any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in guests):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        said = process.stdout.read() + (process.stderr.read() if process.stderr else "")
        assert OWNER_KEY not in line + said
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("mistake", ["no certificate", "no key", "not PEM", "another key"])
def test_each_mistake_with_the_files_of_a_certificate_has_its_message(mistake, tmp_path):
    certificate, key = self_signed(tmp_path / "one")
    other = self_signed(tmp_path / "two")[1]
    (tmp_path / "binary").write_bytes(b"0\x82\x01")
    files, message = {
        "no certificate": (("absent", key), "--tls-certificate: absent cannot be read: No such file or directory"),
        "no key": ((certificate, "absent"), "--tls-key: absent cannot be read: No such file or directory"),
        "not PEM": ((tmp_path / "binary", key), f"--tls-certificate: {tmp_path / 'binary'} is not in PEM format"),
        "another key": ((certificate, other), f"--tls-key: {other} is not the key of {certificate}"),
    }[mistake]
    settings = ServerConfig("127.0.0.1", 0, certificate=Path(files[0]), certificate_key=Path(files[1]))

    async def start() -> None:
        async with serve_app(Starlette(), settings):
            raise AssertionError("it started")

    with pytest.raises(ConfigError, match=re.escape(message)):
        asyncio.run(start())


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--host", "0.0.0.0"], "not a loopback address and no key is set"),
        (["--key-file", "/nowhere/key"], "/nowhere/key: cannot be read"),
        (["--screen", "wide"], "--screen: expected WIDTHxHEIGHT such as 1920x1080, got wide"),
        (["--tls-key", "x.pem"], "--tls-certificate and --tls-key: both are required"),
        (["--idle-s", "0"], "--idle-s: must be above 0, got 0"),
        (["--port", "65535", "--prewarm", "0", "--screen", "320x240"], "--port 65535"),
    ],
)
def test_an_invalid_option_is_a_one_line_error(arguments, part):
    process = started(*arguments)
    _, complaint = process.communicate(timeout=limit(60))
    assert process.returncode == 2
    assert complaint.startswith("error: ")
    assert complaint.count("\n") == 1
    assert part in complaint


async def test_a_server_speaks_https(certificate):
    chain, private = certificate
    trusted = ssl.create_default_context(cafile=str(chain))
    async with (
        bridge(certificate=chain, certificate_key=private) as running,
        httpx2.AsyncClient(base_url=f"https://127.0.0.1:{running.port}", verify=trusted) as http,
    ):
        assert (await http.get("/health")).json() == {"status": "ok"}


async def test_an_unusable_certificate_is_named(tmp_path):
    (tmp_path / "wrong.pem").write_text("not a certificate")
    with pytest.raises(ConfigError, match=r"--tls-certificate: .*wrong\.pem is not in PEM format"):
        async with bridge(certificate=tmp_path / "wrong.pem", certificate_key=tmp_path / "wrong.pem"):
            pass

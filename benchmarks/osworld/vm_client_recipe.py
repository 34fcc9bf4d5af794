"""Client of the recipe: a Python process per action, a PNG per screenshot, and a pause in between.

`set_up` installs what it needs: pyautogui in its own environment (`scripts/environment`), tkinter and scrot from
Debian.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

from benchmarks.thresholds import ROOT
from deskhand.desktop.applications import install
from deskhand.desktop.local.xserver import XServer

PAUSE_S = 2.0
"""The default of OSWorld's `DesktopEnv.step`."""
PREFIX = "import pyautogui; import time; pyautogui.FAILSAFE = False; "
_DEBIAN = ["python3", "python3-venv", "python3-tk", "scrot"]


def set_up() -> Path:
    """Return the environment's Python. Raises `ConfigError` or `CalledProcessError` if installation fails."""
    if missing := install.missing(_DEBIAN):
        install.install(missing)
    command = ["bash", str(ROOT / "scripts" / "environment"), "osworld-recipe"]
    done = subprocess.run(
        command, env=os.environ | {"PYTHON": "/usr/bin/python3"}, stdout=subprocess.PIPE, text=True, check=True
    )
    return Path(done.stdout.strip()) / "bin" / "python"


def _authority(x_server: XServer) -> bytes:
    """Return an Xauthority entry for this host name; python-xlib ignores wildcard entries."""
    words = (socket.gethostname().encode(), str(x_server.number).encode(), b"MIT-MAGIC-COOKIE-1", x_server.cookie)
    return struct.pack(">H", 256) + b"".join(struct.pack(">H", len(word)) + word for word in words)


class Recipe:
    """The recipe on the screen of a running `x_server`."""

    def __init__(self, python: Path, x_server: XServer) -> None:
        self._python = python
        authority = x_server.folder / "recipe-authority"
        authority.write_bytes(_authority(x_server))
        environment = {"DISPLAY": x_server.name, "XAUTHORITY": str(authority), "PATH": os.environ["PATH"]}
        self._process = subprocess.Popen(
            [str(python), str(Path(__file__).with_name("server.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment | {"HOME": str(x_server.folder)},
            text=True,
        )
        assert self._process.stdout is not None
        port = self._process.stdout.readline()
        if not port:
            raise SystemExit(f"{python} could not start the recipe's server; its reason is above")
        self._connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=120)

    def __enter__(self) -> Recipe:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait(timeout=10)

    def act(self, code: str) -> None:
        """Execute pyautogui code as OSWorld's controller does."""
        body = json.dumps({"command": [str(self._python), "-c", PREFIX + code], "shell": False})
        self._connection.request("POST", "/execute", body, {"Content-Type": "application/json"})
        answer = json.loads(self._connection.getresponse().read())
        if answer["returncode"] != 0:
            print(answer["error"], file=sys.stderr)
            raise SystemExit("the recipe's action failed; its reason is above")

    def look(self, scrot: bool = False) -> bytes:
        """Return the screen as PNG."""
        self._connection.request("GET", "/screenshot?scrot" if scrot else "/screenshot")
        return self._connection.getresponse().read()

    def step(self, code: str, pause_s: float) -> bytes:
        """Run OSWorld's step without its accessibility tree."""
        self.act(code)
        time.sleep(pause_s)
        return self.look()

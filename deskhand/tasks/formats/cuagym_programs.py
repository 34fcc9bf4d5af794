"""Runs a set-up or reward program of CUA-Gym in the reader process, without a network and without other programs.

`tasks.suites.web.hub_task` calls `run_program` by `subprocess_call`. What a program sends to an application of
CUA-Gym-Hub (`/post`, `/go`, `/state`) is answered here from the states that it is given. Programs that it starts, such
as the browser, are noted and not started; its files in /tmp are kept for the next program. Keep the imports light.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import json
import os
import re
import subprocess
import sys
import time
import types
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

DOMAIN = ".localhost"
"""End of the host names of hub applications; browsers resolve such names to the loopback interface."""
MAX_OUTPUT_CHARS = 4000
_REFUSED = frozenset({
    "socket.connect", "socket.getaddrinfo", "socket.bind", "subprocess.Popen", "os.system", "os.exec", "os.fork",
    "os.forkpty", "os.posix_spawn", "os.kill",
})  # fmt: skip
_ADDRESS = re.compile(r"https?://[a-z0-9-]+\.localhost[^\s\"']*")


class HubState:
    """State of an application in one session, as the hub's servers keep it."""

    def __init__(self, initial: Any = None, current: Any = None, sid: str | None = None) -> None:
        self.initial, self.current, self.sid = initial, current, sid

    def data(self) -> dict[str, Any]:
        """Return the arguments that make this state again."""
        return {"initial": self.initial, "current": self.current, "sid": self.sid}

    def post(self, request: dict[str, Any]) -> None:
        """Carry out a request to `/post`. Raises `ValueError` for an unknown action."""
        action = request.get("action", "set")
        if action == "reset":
            self.initial = self.current = None
            return
        if action not in ("set", "set_current"):
            raise ValueError(f"unknown action {action!r}")
        new = request.get("state")
        self.current = _merged(self.current or {}, new) if request.get("merge") else new
        if self.initial is None:
            self.initial = request.get("initial_state") if action == "set_current" else None
            self.initial = self.current if self.initial is None else self.initial

    def go(self) -> dict[str, Any]:
        """Return the answer of `/go`. The difference has the top-level keys that changed, with their new values."""
        initial = self.initial if self.initial is not None else self.current or {}
        current = self.current if self.current is not None else initial
        difference: dict[str, Any] = {}
        if isinstance(initial, dict) and isinstance(current, dict):
            for key, value in current.items():
                if key not in initial or json.dumps(value) != json.dumps(initial[key]):
                    difference[key] = {"modified" if initial.get(key) else "added": value}
        return {"initial_state": initial, "current_state": current, "state_diff": difference}


def _merged(target: Any, source: Any) -> Any:
    if not isinstance(source, dict):
        return source
    kept = dict(target) if isinstance(target, dict) else {}
    return kept | {key: _merged(kept.get(key), value) for key, value in source.items()}


class HubReplies:
    """What the hub answers, from states by application."""

    def __init__(self, states: dict[str, Any]) -> None:
        self.states = {name: HubState(**state) for name, state in states.items()}

    def reply(self, method: str, url: str, body: Any) -> tuple[int, Any]:
        """Return status and JSON value. Raises `ConnectionError` for other hosts."""
        parts = urlsplit(url)
        host, sid = parts.hostname or "", parse_qs(parts.query).get("sid", [None])[0]
        if not host.endswith(DOMAIN):
            raise ConnectionError(f"{host}: programs of tasks reach applications of the hub only")
        state = self.states.setdefault(host.removesuffix(DOMAIN), HubState(sid=sid))
        if (method, parts.path) == ("POST", "/post"):
            state.sid = sid
            state.post(body)
            return 200, {"success": True, "status": "ok", "state": state.current}
        if (method, parts.path) == ("GET", "/go"):
            return 200, (state if state.sid == sid else HubState()).go()
        if (method, parts.path) == ("GET", "/state"):
            stored = state.current if state.sid == sid else None
            return 200, {"stored_state": stored, "has_custom_state": stored is not None, "sid": sid}
        return 404, {"error": f"{method} {parts.path}: not found"}


class Response(io.BytesIO):
    """An answer, for `urllib` and for `requests`."""

    def __init__(self, status: int, value: Any) -> None:
        super().__init__(json.dumps(value).encode())
        self.status = self.status_code = self.code = status
        self.ok, self.headers = status < 400, {"Content-Type": "application/json"}
        self.content = self.getvalue()
        self.text = self.content.decode()

    def json(self) -> Any:
        return json.loads(self.content)

    def getcode(self) -> int:
        return self.status

    def raise_for_status(self) -> None:
        if not self.ok:
            raise OSError(f"status {self.status}")


class Started:
    """A program that was noted and not started."""

    returncode, pid, stdout, stderr = 0, 1, "", ""

    def __enter__(self) -> Started:
        return self

    def __exit__(self, *_: Any) -> None: ...

    def poll(self) -> None:
        return None

    def wait(self, *_: Any, **__: Any) -> int:
        return 0

    def communicate(self, *_: Any, **__: Any) -> tuple[str, str]:
        return "", ""


def run_program(states: bytes, source: str, name: str, files: dict[str, str]) -> dict[str, Any]:
    """Run a Python program; `states` is JSON (`HubState.data` by application), `files` what was in /tmp, by name.

    Returns the new "states" and "files", the addresses that it "opened", its "output" and its "error" or None.
    """
    replies = HubReplies(json.loads(states or b"{}"))
    folder = Path.cwd() / "tmp"
    folder.mkdir(exist_ok=True)
    for path, text in files.items():
        (folder / path).write_text(text, encoding="utf-8")
    opened: list[str] = []
    _replace_network(replies)
    _replace_programs(opened)
    _move_files(folder)
    sys.addaudithook(_refuse)
    sys.argv, arguments = [name], sys.argv
    printed, error = io.StringIO(), None
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
        try:
            exec(compile(source, name, "exec"), {"__name__": "__main__", "__file__": name})
        except SystemExit as end:
            error = f"exit: {end.code}" if end.code else None
        except MemoryError:
            raise
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"[:500]
    sys.argv = arguments  # the reader finds there where its answer goes
    return {
        "states": {name: state.data() for name, state in replies.states.items()},
        "files": {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir() if path.is_file()},
        "opened": opened,
        "output": printed.getvalue()[-MAX_OUTPUT_CHARS:],
        "error": error,
    }


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if event in _REFUSED:
        raise PermissionError(f"{event}: programs of tasks start no programs and reach no network")


def _replace_network(replies: HubReplies) -> None:
    def send(method: str, url: str, params: Any = None, json: Any = None, data: Any = None, **_: Any) -> Response:
        if params:
            url = f"{url}{'&' if '?' in url else '?'}{urlencode(params)}"
        return Response(*replies.reply(method.upper(), url, json if json is not None else _parsed(data)))

    def urlopen(request: Any, data: Any = None, *_: Any, **__: Any) -> Response:
        if isinstance(request, str):
            return send("GET" if data is None else "POST", request, data=data)
        return send(request.get_method(), request.full_url, data=request.data if data is None else data)

    module = types.ModuleType("requests")
    named = {verb: lambda url, verb=verb, **more: send(verb, url, **more) for verb in ("get", "post", "put", "delete")}
    names: dict[str, Any] = {**named, "request": send, "Response": Response}
    session = types.SimpleNamespace(**names, headers={}, close=lambda: None)
    failures: dict[str, Any] = dict.fromkeys(("RequestException", "ConnectionError", "Timeout", "HTTPError"), OSError)
    exceptions = types.ModuleType("requests.exceptions")
    vars(exceptions).update(failures)
    vars(module).update(names, **failures, exceptions=exceptions, Session=lambda: session)
    sys.modules.update({"requests": module, "requests.exceptions": exceptions})
    urllib.request.urlopen = urlopen  # pyright: ignore[reportAttributeAccessIssue]
    time.sleep = lambda _: None  # pyright: ignore[reportAttributeAccessIssue]


def _parsed(data: Any) -> Any:
    return json.loads(data) if data else None


def _replace_programs(opened: list[str]) -> None:
    def start(command: Any, *_: Any, **__: Any) -> Started:
        text = command if isinstance(command, str) else " ".join(map(str, command))
        opened.extend(_ADDRESS.findall(text))
        return Started()

    for name in ("Popen", "run", "call", "check_call"):
        setattr(subprocess, name, start)
    subprocess.check_output = lambda *command, **more: ""  # pyright: ignore[reportAttributeAccessIssue]
    os.system = lambda command: start(command).returncode


def _move_files(folder: Path) -> None:
    """Make what programs have in /tmp files of `folder`."""

    def moved(path: Any) -> Any:
        text = os.fspath(path) if isinstance(path, str | os.PathLike) else ""
        is_moved = text.startswith("/tmp/") and not text.startswith(str(folder))
        return str(folder / text[5:].replace("/", "_")) if is_moved else path

    for module, name in ((io, "open"), (os.path, "exists"), (os.path, "isfile")):
        function = getattr(module, name)
        setattr(module, name, lambda path, *more, _of=function, **named: _of(moved(path), *more, **named))
    builtins.open = io.open

"""The guest of a leased desktop: run programs, resolve paths, read and write files.

Used by the OSWorld routes and by OSWorld task set-up; also installs the pyautogui replacement of `guest_tools`.

Invariant: client input is executed, named and resolved inside the guest, as the guest's user, through `Desktop.run`
only. It never reaches a shell, an interpreter or a path of the host.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import posixpath
import re
import secrets
import shlex
import time
from dataclasses import dataclass
from importlib import resources

from deskhand.desktop.applications import browser, catalog
from deskhand.desktop.base import StageableDesktop
from deskhand.errors import ConfigError
from deskhand.server.pyautogui_rpc import PyAutoGuiRpc

MAX_ARGUMENT_BYTES = 120_000
"""Bytes of one argument; the kernel's limit is 128 KiB."""
_START = """\
mark=$1 tools=$2; shift 2
export PATH="$tools/bin:$PATH" PYTHONPATH="$tools/python${PYTHONPATH:+:$PYTHONPATH}" DESKHAND_RPC_DIR="$tools/asks"
case $1 in
*/*)
    [ -x "$1" ] && [ ! -d "$1" ] && exec "$@"
    [ -e "$1" ] && { printf %s "$mark-denied" >&2; exit 126; }
    ;;
*)
    IFS=:
    for folder in $PATH; do
        [ -x "$folder/$1" ] && [ ! -d "$folder/$1" ] && exec "$@"
    done
    ;;
esac
printf %s "$mark-missing" >&2
exit 127
"""
_TOOLS = """\
mkdir -p -- "$1/bin" "$1/python" "$1/asks" && printf %s "$2" >"$1/python/pyautogui.py" &&
printf '#!/bin/sh\\nexec python3 "$@"\\n' >"$1/bin/python" && chmod 755 -- "$1/bin/python"
bin=$1/bin
shift 2
while [ $# -gt 0 ]; do
    [ "$1" = google-chrome ] && command -v google-chrome >/dev/null || ! command -v "$2" >/dev/null || {
        printf %s "$3" >"$bin/$1" && chmod 755 -- "$bin/$1"
    }
    shift 3
done
"""
_ABSENT, _FOLDER = 44, 45
_READ = f'[ -e "$1" ] || exit {_ABSENT}; [ -d "$1" ] && exit {_FOLDER}; exec cat -- "$1"'
_WRITE = """\
mkdir -p -- "$(dirname -- "$2")" && cat -- "$1" >"$2"
code=$?
rm -f -- "$1"
exit $code
"""
FILE_TIMEOUT_S = 30.0
OSWORLD_HOME = "/home/user"
_OSWORLD_HOME = re.compile(r"(?<![\w./-])/home/user(?![\w.-])")
_VARIABLE = re.compile(r"\$(?:(\w+)|\{([^}]*)\})", re.ASCII)


class GuestTimeout(Exception):
    """A command exceeded its timeout and was killed."""


@dataclass(frozen=True)
class GuestCommandResult:
    """Exit code and decoded output of a command."""

    returncode: int
    output: str
    error: str


def text_of(data: bytes) -> str:
    """Decode output as Python's text mode does: UTF-8 with universal newlines. Raises `UnicodeDecodeError`."""
    return data.decode().replace("\r\n", "\n").replace("\r", "\n")


class Guest:
    """The guest of `desktop`, whose screen has `width` x `height` pixels."""

    def __init__(self, desktop: StageableDesktop, width: int, height: int) -> None:
        self.desktop = desktop
        self._size = (width, height)
        self._rpc: PyAutoGuiRpc | None = None
        self._environment: dict[str, str] | None = None
        self._tools: str | None = None
        self._tools_lock = asyncio.Lock()
        self._closed = False

    async def environment(self) -> dict[str, str]:
        """Return the environment variables of guest programs."""
        if self._environment is None:
            text = (await self.desktop.run(["env", "-0"])).stdout.decode(errors="surrogateescape")
            self._environment = dict(entry.split("=", 1) for entry in text.split("\0") if "=" in entry)
        return self._environment

    async def home(self) -> str:
        return (await self.environment()).get("HOME", "/")

    async def map_home(self, text: str) -> str:
        """Replace OSWorld's home directory in `text` by the guest's, which differs without namespaces."""
        home = await self.home()
        return text if home == OSWORLD_HOME else _OSWORLD_HOME.sub(lambda _: home, text)

    async def expand(self, path: str) -> str:
        """Expand `~`, `$NAME` and `${NAME}` in `path`; unknown names stay as they are."""
        environment = await self.environment()
        head, slash, rest = path.partition("/")
        if head in ("~", "~" + environment.get("USER", "")):
            path = environment.get("HOME", "/").rstrip("/") + slash + rest
        path = _VARIABLE.sub(lambda found: environment.get(found[1] or found[2] or "", found[0]), path)
        return await self.map_home(path)

    async def _with_launcher(self, argv: list[str]) -> tuple[list[str], str]:
        """Return `argv` wrapped in a shell script that locates the program, and the marker of a missing one."""
        if any("\0" in word for word in argv):
            raise ValueError("embedded null byte")
        if not argv:
            raise IndexError("list index out of range")
        if max(len(word.encode()) for word in argv) > MAX_ARGUMENT_BYTES:
            raise OSError(errno.E2BIG, os.strerror(errno.E2BIG), argv[0][:80])
        mark = secrets.token_hex(12)
        words = [await self.map_home(word) for word in argv]
        return ["/bin/sh", "-c", _START, "sh", mark, await self.tools(), *words], mark

    async def run(self, argv: list[str], *, timeout_s: float, cwd: str | None = None) -> GuestCommandResult:
        """Run a program to completion. Raises `GuestTimeout` and the other exceptions of `subprocess.run`."""
        words, mark = await self._with_launcher(argv)
        started = time.monotonic()
        with self._rpc.fast_polling() if self._rpc else contextlib.nullcontext():
            done = await self.desktop.run(words, timeout_s=timeout_s, cwd=cwd)
        if done.returncode == 124 and time.monotonic() - started >= timeout_s:
            raise GuestTimeout(f"timed out after {timeout_s:g} seconds")
        for number, word in ((errno.ENOENT, "missing"), (errno.EACCES, "denied")):
            if done.stderr == f"{mark}-{word}".encode():
                raise OSError(number, os.strerror(number), argv[0])
        return GuestCommandResult(done.returncode, text_of(done.stdout), text_of(done.stderr))

    async def launch(self, argv: list[str]) -> int:
        """Start a program without waiting and return its host process id. Raises `OSError` if it does not exist."""
        words, _ = await self._with_launcher(argv)
        if not await self.has_program(argv[0]):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), argv[0])
        try:
            return await self.desktop.launch(words)
        except ConfigError as error:
            raise OSError(errno.ENOENT, str(error), argv[0]) from None

    async def has_program(self, program: str) -> bool:
        """Return whether the guest's shell finds `program`."""
        if not program or "\0" in program:
            return False
        script = 'PATH="$1/bin:$PATH"; command -v -- "$2" >/dev/null'
        return (await self.desktop.run(["/bin/sh", "-c", script, "sh", await self.tools(), program])).returncode == 0

    async def test(self, flag: str, path: str) -> bool:
        """Return the result of `test -<flag> path` in the guest."""
        if "\0" in path:
            return False
        return (await self.desktop.run(["test", f"-{flag}", path])).returncode == 0

    async def read(self, path: str) -> bytes:
        """Return a file. Raises `FileNotFoundError`, `PermissionError` for links out of the home, or `OSError`."""
        at, inside = await self._resolve(path)
        if inside:
            return await self.desktop.pull(at)
        done = await self.desktop.run(["/bin/sh", "-c", _READ, "sh", at], timeout_s=FILE_TIMEOUT_S)
        number = {_ABSENT: errno.ENOENT, _FOLDER: errno.EISDIR}.get(done.returncode)
        if number is not None:
            raise OSError(number, os.strerror(number), path)
        if done.returncode != 0:
            raise OSError(errno.EIO, done.stderr.decode(errors="replace").strip() or "cannot be read", path)
        return done.stdout

    async def write(self, path: str, data: bytes) -> None:
        """Write a file and create its parent directories. Raises `OSError`."""
        at, inside = await self._resolve(path)
        if inside:
            await self.desktop.push(at, data)
            return
        staged = posixpath.join(await self.tools(), secrets.token_hex(12))
        await self.desktop.push(staged, data)
        done = await self.desktop.run(["/bin/sh", "-c", _WRITE, "sh", staged, at], timeout_s=FILE_TIMEOUT_S)
        if done.returncode != 0:
            raise OSError(errno.EIO, done.stderr.decode(errors="replace").strip() or "cannot be written", path)

    async def _resolve(self, path: str) -> tuple[str, bool]:
        """Return the absolute path and whether it is in the home. Raises `FileNotFoundError` if it is not a path."""
        if not path or "\0" in path or any("\ud800" <= character <= "\udfff" for character in path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        home = await self.home()
        at = posixpath.normpath(posixpath.join(home, path))
        at = "/" + at.lstrip("/")
        return at, at.startswith(home.rstrip("/") + "/")

    async def tools(self) -> str:
        """Return the guest directory with Deskhand's helpers; it is created on first use.

        The lock matters: two pollers of one request directory would perform every action twice.
        """
        async with self._tools_lock:
            if self._tools is None:
                folder = posixpath.join(await self.home(), ".cache", "deskhand")
                tools = resources.files("deskhand.server.guest_tools")
                names = ("pyautogui.py", *catalog.OSWORLD_PROGRAMS)
                texts = {name: tools.joinpath(name).read_text(encoding="utf-8") for name in names}
                texts["google-chrome"] = texts["google-chrome"].replace("@FLAGS@", shlex.join(browser.FLAGS))
                programs = catalog.OSWORLD_PROGRAMS.items()
                wrappers = [word for name, real in programs for word in (name, real, texts[name])]
                await self.desktop.run(["/bin/sh", "-c", _TOOLS, "sh", folder, texts["pyautogui.py"], *wrappers])
                self._tools = folder
                self._rpc = PyAutoGuiRpc(self.desktop, posixpath.join(folder, "asks"), self._size)
                if not self._closed:
                    self._rpc.start()
            return self._tools

    def close(self) -> None:
        """Stop serving the guest's pyautogui calls. Idempotent."""
        self._closed = True
        if self._rpc is not None:
            self._rpc.stop()

"""An attack, and the code that every guest program starts with.

Invariant: an attack that works does no lasting harm to the machine: it reaches only what the page made for it, takes
bounded amounts, and ends by itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from deskhand.desktop.local.isolation import ResourceLimits

LEVELS = ("namespaces", "plain")
LIMITS = ResourceLimits(memory_mib=128, max_processes=64, disk_mib=32, file_mib=8)
TOO_MUCH_MIB = 2 * LIMITS.memory_mib + 16
"""More memory than this means that the limit does not hold; without control groups it may be exceeded by half."""
NOT_ASKED: Mapping[str, Any] = {"text": {"path": "result.txt", "lines": ["done"]}}


@dataclass(frozen=True)
class Attack:
    """A guest program and what must hold. Every attack is an episode's only action, so none may be paid or voided."""

    kind: str
    name: str
    must: str
    """What must hold, in words."""
    program: str
    """Python, run after `PRELUDE`. It says `reached(what)` if it got what it must not, and `tried()` at its end."""
    next_program: str = ""
    """Runs in the next episode of the same desktop, and in one of a new desktop."""
    check: Mapping[str, Any] = field(default_factory=lambda: NOT_ASKED)
    """The check of the episode's task, as in a task file."""
    lasts_s: float = 0.2
    """How long it goes on after `tried()`, unless the desktop fails."""
    kills_owner: bool = False
    """The owner of the desktop is killed by SIGKILL, and closes nothing."""
    levels: tuple[str, ...] = LEVELS
    needs_groups: bool = False
    """Holds with control groups only."""

    def source(self) -> str:
        """Return the whole program."""
        return f"{PRELUDE}\n{inspect.cleandoc(self.program)}\n"

    def next_source(self) -> str:
        return f"{PRELUDE}\n{inspect.cleandoc(self.next_program)}\ntried()\n"


PRELUDE = r"""
import ctypes, errno, fcntl, glob, io, json, mmap, os, resource, signal, socket, sqlite3, stat, struct, subprocess
import sys, threading, time, zipfile, zlib
signal.alarm(100)  # an attack that works ends some day
word, here = sys.argv[1], os.path.dirname(os.path.abspath(__file__))
os.chdir(here)
with open("facts.json") as file:
    facts = json.load(file)
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
_report = os.open("report", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
MARK = b"secret-" + b"of-the-host"

def say(*words):
    try:
        os.write(_report, (" ".join(map(str, words)) + "\n").encode())
    except OSError:
        pass

def tried():
    say("tried")

def reached(what):
    say("reached", what)

def holds(mib):
    say("holds", int(mib))

def _failed(kind, error, trace):
    if kind is MemoryError:  # the limit of one process
        tried()
        time.sleep(60)
    import traceback
    say("error", " | ".join("".join(traceback.format_exception(kind, error, trace)).split("\n")))
sys.excepthook = _failed

def must_fail(what, function, *arguments):
    "Call it; say that it was reached if it works. Return its value, None if it failed."
    try:
        value = function(*arguments)
    except (OSError, subprocess.SubprocessError):
        return None
    reached(what)
    return value

def checked(value):
    if value in (-1, None):
        raise OSError(ctypes.get_errno(), "call")
    return value

def call(name, *arguments):
    "A system call by name; bytes are passed by address."
    words = [each if isinstance(each, bytes) else ctypes.c_long(each) for each in arguments]
    return checked(libc.syscall(facts["calls"][name], *words))

def must_not_read(path, limit=1 << 16):
    "Say so if the secret of the host is in a file."
    try:
        with open(path, "rb", buffering=0) as file:
            if MARK in file.read(limit):
                reached(path)
    except (OSError, ValueError):
        pass

def parent_of(pid):
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])
job = os.getppid()
shell = parent_of(job)

say("began")

def pipe_of_shell():
    "Neither is possible on every machine: the pipe may belong to another user, and Yama refuses to trace a parent."
    try:
        return os.open(f"/proc/{shell}/fd/1", os.O_WRONLY)
    except PermissionError:
        taken = libc.syscall(438, os.pidfd_open(shell), 1, 0)  # pidfd_getfd
        return taken if taken >= 0 else os.open("/dev/null", os.O_WRONLY)

def without_files():
    null = os.open("/dev/null", os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)

def leave(code="import time; time.sleep(90)"):
    "Start a program without parent, session, environment and open files; what is left has the word as an argument."
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            without_files()
            os.execve("/usr/bin/python3", ["python3", "-c", code, word], {})
        os._exit(0)

class X:
    "A client of an X server, by the protocol alone."

    def __init__(self, number=None, cookie=None):
        number = number or os.environ["DISPLAY"].partition(":")[2]
        with open(os.environ["XAUTHORITY"], "rb") as file:
            own = file.read()[-16:]
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(f"/tmp/.X11-unix/X{number}")
        head = struct.pack("<BxHHHHxx", 0x6C, 11, 0, 18, 16) + b"MIT-MAGIC-COOKIE-1\0\0" + (cookie or own)
        self.socket.sendall(head)
        head = self.read(8)
        more = self.read(4 * struct.unpack("<H", head[6:8])[0])
        if head[0] != 1:
            raise PermissionError(errno.EACCES, "X")
        self.base, _, _, vendor = struct.unpack("<IIIH", more[4:18])
        at = 32 + (vendor + 3 & ~3) + 8 * more[21]
        self.root, = struct.unpack("<I", more[at:at + 4])
        self.last = self.base

    def read(self, size):
        data = b""
        while len(data) < size:
            data += self.socket.recv(size - len(data)) or self._gone()
        return data

    def _gone(self):
        raise ConnectionResetError(errno.ECONNRESET, "X")

    def new(self):
        self.last += 1
        return self.last

    def send(self, opcode, detail, body=b""):
        body += bytes(-len(body) % 4)
        self.socket.sendall(struct.pack("<BBH", opcode, detail, 1 + len(body) // 4) + body)

    def sync(self):
        "Wait for the server; return the codes of its errors."
        self.send(43, 0)
        errors = []
        while True:
            message = self.read(32)
            if message[0] == 0:
                errors.append(message[1])
            elif message[0] == 1:
                self.read(4 * struct.unpack("<I", message[4:8])[0])
                return errors
"""
"""Guests have Python and its standard library only."""

"""Nothing of one episode can be read in the next: memory, semaphores, queues, keys, files, sockets, clipboards."""

from __future__ import annotations

import json
import platform
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import xcffib
import xcffib.xproto
from desktops import ISOLATIONS, embedded
from xcffib.xproto import Atom, EventMask, PropMode, WindowClass

from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.local import guest_user, isolation, seccomp
from deskhand.desktop.local.x_connection import XConnection

SMALL = DesktopSpec("plain", 256, 192)
KEY = 0xDE5C
WORD = "of-the-first-episode"
SHARED_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue", "/run/lock")

CHANNELS = """
import ctypes, json, os, socket, struct, sys
action, asked = sys.argv[1], json.loads(sys.argv[2])
numbers, key, word = asked["numbers"], asked["key"], asked["word"].encode()
CREATE, USER_KEYRING, KEYCTL_SEARCH = 0o1666, -4, 10
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long

def call(name, *arguments):
    words = (each if isinstance(each, bytes) else ctypes.c_long(each) for each in arguments)
    result = libc.syscall(numbers[name], *words)
    if result == -1:
        raise OSError(ctypes.get_errno(), name)
    return result

def segment(create):
    return call("shmat", call("shmget", key, 4096, create), 0, 0)

def leave_segment():
    ctypes.memmove(segment(CREATE), word, len(word))

def find_segment():
    return ctypes.string_at(segment(0), len(word)) == word

def leave_queue():
    message = ctypes.create_string_buffer(struct.pack("@l", 1) + word)
    call("msgsnd", call("msgget", key, CREATE), ctypes.addressof(message), len(word), 0)

def find_queue():
    call("msgget", key, 0)
    return True

def leave_semaphore():
    call("semget", key, 1, CREATE)

def find_semaphore():
    call("semget", key, 1, 0)
    return True

def leave_posix_queue():
    os.close(call("mq_open", word, os.O_RDWR | os.O_CREAT, 0o666, 0))

def find_posix_queue():
    os.close(call("mq_open", word, os.O_RDWR, 0, 0))
    return True

def leave_key():
    call("add_key", b"user", word, word, len(word), USER_KEYRING)

def find_key():
    call("keyctl", KEYCTL_SEARCH, USER_KEYRING, b"user", word, 0)
    return True

def leave_socket():
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(b"\\0" + word)
    listener.listen()
    listener.set_inheritable(True)
    if os.fork() == 0:
        os.setsid()
        for number in (0, 1, 2):
            os.dup2(os.open("/dev/null", os.O_RDWR), number)
        os.execve("/bin/sleep", ["sleep", "600"], {})

def find_socket():
    socket.socket(socket.AF_UNIX).connect(b"\\0" + word)
    return True

def file_channel(folder):
    path = os.path.join(os.path.expandvars(folder), asked["word"])
    def leave():
        with open(path, "wb") as file:
            file.write(word)
    def find():
        with open(path, "rb") as file:
            return file.read() == word
    return leave, find

channels = {
    "shared memory": (leave_segment, find_segment), "queue": (leave_queue, find_queue),
    "semaphore": (leave_semaphore, find_semaphore), "POSIX queue": (leave_posix_queue, find_posix_queue),
    "key": (leave_key, find_key), "socket": (leave_socket, find_socket),
    **{folder: file_channel(folder) for folder in asked["folders"]},
}
worked = []
for name, (leave, find) in channels.items():
    try:
        if action == "find":
            worked += [name] if find() else []
        else:
            leave()
            worked.append(name)
    except OSError:
        pass
print(json.dumps(worked))
"""


@contextmanager
def own_selections(desktop) -> Iterator[None]:
    """A program with the user's cookie that owns the clipboards and sets properties that all programs can read."""
    server = desktop._session.x_server
    connection, over = XConnection(server.name, server.cookie), threading.Event()
    window = connection.x.generate_id()
    connection.core.CreateWindow(0, window, connection.root, 0, 0, 1, 1, 0, WindowClass.InputOnly, 0, 0, [])
    for name in ("PRIMARY", "SECONDARY", "CLIPBOARD"):
        atom = connection.core.InternAtom(False, len(name), name).reply().atom
        connection.core.SetSelectionOwner(window, atom, 0)
    arguments = (Atom.CUT_BUFFER0, Atom.STRING, 8, len(WORD), WORD.encode())
    connection.core.ChangeProperty(PropMode.Replace, connection.root, *arguments)
    connection.sync()

    def answer() -> None:
        while not over.is_set():
            try:
                asked = connection.next_event(0.05)
            except xcffib.ConnectionException:  # the episode is over
                return
            if isinstance(asked, xcffib.xproto.SelectionRequestEvent):
                place = (asked.requestor, asked.property, asked.target, 8, len(WORD), WORD.encode())
                connection.core.ChangeProperty(PropMode.Replace, *place)
                fields = (asked.time, asked.requestor, asked.selection, asked.target, asked.property)
                note = xcffib.xproto.SelectionNotifyEvent.synthetic(*fields)
                connection.core.SendEvent(False, asked.requestor, EventMask.NoEvent, note.pack())
                connection.sync()

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        connection.close()


async def run_channels(desktop, action: str) -> list[str]:
    machine = platform.machine()
    order = ["x86_64", "aarch64"]
    index = order.index(machine) if machine in order else 0
    numbers = {name: each[index] for name, each in seccomp.SYSTEM_CALLS.items()}
    folders = ["$HOME", "$TMPDIR", "$XDG_RUNTIME_DIR", "/run", "/run/user", "/home", *SHARED_FOLDERS]
    asked = json.dumps({"numbers": numbers, "key": KEY, "word": WORD, "folders": folders})
    done = await desktop.run(["python3", "-c", CHANNELS, action, asked])
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def root_properties(desktop) -> set[str]:
    connection = desktop._session.connection
    atoms = connection.core.ListProperties(connection.root).reply().atoms
    return {connection.core.GetAtomName(atom).reply().name.to_string() for atom in atoms}


def objects_of_guests() -> list[str]:
    """System V objects with the test's key or of a guest's user id, and files of such a user id."""
    found = []
    for kind in ("shm", "msg", "sem"):
        head, *lines = Path("/proc/sysvipc", kind).read_text().splitlines()
        for line in lines:
            row = dict(zip(head.split(), line.split(), strict=True))
            found += [f"{kind} {line}"] if int(row["key"]) == KEY or is_guest(int(row["uid"])) else []
    for folder in SHARED_FOLDERS:
        if Path(folder).is_dir():
            found += [str(path) for path in Path(folder).iterdir() if path.name == WORD]
    return found


def is_guest(uid: int) -> bool:
    return guest_user.FIRST_UID <= uid < guest_user.FIRST_UID + guest_user.MAX_GUESTS


@pytest.mark.parametrize("level", ISOLATIONS)
async def test_nothing_of_an_episode_is_readable_in_the_next(level):
    before = objects_of_guests()
    async with embedded(SMALL, isolation_level=level) as desktop:
        left = await run_channels(desktop, "leave")
        assert {"$HOME", "$TMPDIR", "socket"} <= set(left)
        assert set(left) & {"shared memory", "queue", "semaphore", "POSIX queue", "key"} == set()
        assert set(await run_channels(desktop, "find")) == set(left)
        with own_selections(desktop):
            assert await desktop.clipboard() == WORD
            assert "CUT_BUFFER0" in root_properties(desktop)
            await desktop.reset(SMALL)
        assert await run_channels(desktop, "find") == []
        assert await desktop.clipboard() is None
        assert "CUT_BUFFER0" not in root_properties(desktop)
        await run_channels(desktop, "leave")
    async with embedded(SMALL, isolation_level=level) as desktop:
        assert await run_channels(desktop, "find") == []
        assert await desktop.clipboard() is None
    assert objects_of_guests() == before


@pytest.mark.skipif(not guest_user.guest_uids(), reason="only root can give guests users of their own")
def test_without_landlock_plain_guests_cannot_write_to_shared_folders():
    isolation.close_shared_folders()
    user = ["setpriv", f"--reuid={guest_user.FIRST_UID}", f"--regid={guest_user.FIRST_UID}"]
    for folder in filter(lambda each: Path(each).is_dir(), SHARED_FOLDERS):
        guest = [*user, f"--groups={isolation.guest_group()}", "test", "-w", folder]
        assert subprocess.run(guest, check=False).returncode == 1, folder

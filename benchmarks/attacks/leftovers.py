"""Attacks that leave something in one episode and read it in the next."""

from __future__ import annotations

from benchmarks.attacks.parts import Attack

KEEP_ALIVE = """
def keep_alive():
    "Go on in a process that no parent, session or file ties to the episode."
    if os.fork() == 0:
        os.setsid()
        without_files()
        signal.pause()
        os._exit(0)
"""


def leftover(name: str, leave: str, find: str) -> Attack:
    """`leave` and `find` may use `common`; `find` must fail."""
    find = f"def find():\n{_indented(find)}\nmust_fail({name!r}, find)"
    return Attack("leftovers", name, "the next episode finds nothing", f"{KEEP_ALIVE}\n{leave}\ntried()", find)


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.strip().split("\n"))


def system_call(name: str, leave: str, find: str) -> Attack:
    """What the filter refuses may be left as well: then there is nothing to find."""
    return leftover(name, f"try:\n{_indented(leave)}\nexcept OSError:\n    say('refused')", find)


def file(folder: str, name: str) -> Attack:
    path = f"os.path.expandvars({folder!r}) + '/of-the-first-episode'"
    return system_call(f"file in {name}", f"open({path}, 'w').write('x')", f"open({path})")


TABLE = (
    system_call(
        "segment of System V",
        "call('shmat', call('shmget', 0xde5c, 4096, 0o1666), 0, 0)",
        "call('shmget', 0xde5c, 0, 0)",
    ),
    system_call("queue of System V", "call('msgget', 0xde5c, 0o1666)", "call('msgget', 0xde5c, 0)"),
    system_call("semaphore of System V", "call('semget', 0xde5c, 1, 0o1666)", "call('semget', 0xde5c, 1, 0)"),
    system_call(
        "list of all objects of System V",
        "call('shmget', 0xde5d, 4096, 0o1666)",
        """
lines = [line for name in ("shm", "msg", "sem") for line in open(f"/proc/sysvipc/{name}").read().splitlines()[1:]]
if not any(" 56925 " in line for line in lines):
    raise OSError
""",
    ),
    system_call(
        "message queue of POSIX",
        "call('mq_open', b'left', os.O_RDWR | os.O_CREAT, 0o666, 0)",
        "call('mq_open', b'left', os.O_RDWR, 0, 0)",
    ),
    *(
        system_call(
            f"key in the {name} keyring",
            f"call('add_key', b'user', b'left', b'left', 4, {number})",
            f"call('keyctl', 10, {number}, b'user', b'left', 0)",
        )
        for name, number in (("user", -4), ("user session", -5), ("session", -3))
    ),
    file("$HOME", "the home"),
    file("$TMPDIR", "the temporary folder"),
    file("$XDG_RUNTIME_DIR", "the runtime folder"),
    file("/tmp", "/tmp"),
    file("/var/tmp", "/var/tmp"),
    file("/dev/shm", "/dev/shm"),
    file("/dev/mqueue", "/dev/mqueue"),
    file("/run/lock", "/run/lock"),
    file("/run/user", "/run/user"),
    system_call(
        "attribute of a shared folder",
        "os.setxattr('/tmp', 'user.left', b'x')",
        "os.getxattr('/tmp', 'user.left')",
    ),
    system_call(
        "lock on a file of the system, held by a process",
        "file = open('/usr/bin/sleep', 'rb'); fcntl.flock(file, fcntl.LOCK_EX); keep_alive()",
        """
with open("/usr/bin/sleep", "rb") as file:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
raise OSError
""",
    ),
    leftover(
        "abstract socket of a process",
        "one = socket.socket(socket.AF_UNIX); one.bind('\\0of-the-first-episode'); one.listen(); keep_alive()",
        "socket.socket(socket.AF_UNIX).connect('\\0of-the-first-episode')",
    ),
    leftover(
        "process with a memfd",
        "file = os.memfd_create('left'); os.write(file, b'left'); keep_alive()",
        """
for path in glob.glob("/proc/[0-9]*/fd/*"):
    try:
        if "memfd:left" in os.readlink(path):
            return
    except OSError:
        continue
raise OSError
""",
    ),
    leftover(
        "clipboard and cut buffer",
        """
x = X()
window = x.new()
x.send(1, 0, struct.pack("<IIhhHHHHII", window, x.root, 0, 0, 1, 1, 0, 2, 0, 0))
for selection in (1, 2):  # PRIMARY, SECONDARY
    x.send(22, 0, struct.pack("<III", window, selection, 0))
x.send(18, 0, struct.pack("<IIIBxxxI", x.root, 9, 31, 8, 4) + b"left")  # CUT_BUFFER0
x.send(112, 1)  # what it made stays
x.sync()
keep_alive()
""",
        """
x = X()
found = []
for selection in (1, 2):
    x.send(23, 0, struct.pack("<I", selection))
    found.append(struct.unpack("<I", x.read(32)[8:12])[0])
x.send(20, 0, struct.pack("<IIIII", x.root, 9, 0, 0, 9))
found.append(struct.unpack("<I", x.read(32)[8:12])[0])
if not any(found):
    raise OSError
""",
    ),
)

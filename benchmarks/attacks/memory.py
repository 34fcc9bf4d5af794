"""Attacks that take more memory than the desktop may have. `holds(mib)` says how much there is."""

from __future__ import annotations

from benchmarks.attacks.parts import TOO_MUCH_MIB, Attack

TARGET_MIB = TOO_MUCH_MIB + 112
LIMITED = "the call is refused, or the desktop fails with the reason"


def memory(name: str, program: str, must: str = LIMITED, *, needs_groups: bool = False) -> Attack:
    whole = f"TARGET_MIB = {TARGET_MIB}\nkept = []\n{_unindented(program)}\ntried()\ntime.sleep(60)"
    return Attack("memory", name, must, whole, lasts_s=2.5, needs_groups=needs_groups)


def _unindented(program: str) -> str:
    lines = program.strip("\n").split("\n")
    margin = len(lines[0]) - len(lines[0].lstrip())
    return "\n".join(line[margin:] for line in lines)


IN_PROCESSES = """
        # each of several processes takes its share
        for number in range(8):
            child = os.fork()
            if child == 0:
                share = TARGET_MIB // 8
                {take}
                say("took", number)
                time.sleep(60)
        while True:
            time.sleep(0.05)
            with open("report") as file:
                count = file.read().count("took")
            holds(count * TARGET_MIB // 8)
            if count >= 8 or time.monotonic() > began + 4:
                break
"""
TABLE = (
    memory(
        "private, in one process",
        """
        for mib in range(TARGET_MIB):
            kept.append(b"%d" % mib * (1 << 18))
            holds(mib)
        """,
    ),
    memory(
        "private, in eight processes",
        "        began = time.monotonic()" + IN_PROCESSES.format(take='kept = b"x" * (share << 20)'),
    ),
    memory(
        "shared mappings",
        """
        for mib in range(TARGET_MIB):
            kept.append(mmap.mmap(-1, 1 << 20))
            kept[-1].write(b"x" * (1 << 20))
            holds(mib)
        """,
    ),
    memory(
        "memfds that nothing maps",
        """
        for mib in range(0, TARGET_MIB, 4):
            kept.append(os.memfd_create("x"))
            os.write(kept[-1], b"x" * (4 << 20))
            holds(mib)
        """,
    ),
    memory(
        "memfds of large pages",
        """
        for mib in range(0, TARGET_MIB, 2):
            try:
                kept.append(os.memfd_create("x", os.MFD_HUGETLB))
                os.ftruncate(kept[-1], 2 << 20)
                mmap.mmap(kept[-1], 2 << 20).write(b"x" * (2 << 20))
            except OSError:
                break
            holds(mib)
        """,
    ),
    memory(
        "segments of System V",
        """
        for mib in range(TARGET_MIB):
            try:
                place = call("shmat", call("shmget", 0, 1 << 20, 0o1600), 0, 0)
            except OSError:
                break
            ctypes.memset(place, 1, 1 << 20)
            holds(mib)
        """,
    ),
    memory(
        "files on file systems in memory",
        """
        folders = [here, os.environ["TMPDIR"], os.environ["XDG_RUNTIME_DIR"], "/dev/shm", "/run", "/tmp", "/etc",
                   "/", "/var", "/home", "/dev", "/run/user", "/sys"]
        mib = 0
        for folder in folders:
            for number in range(TARGET_MIB // 6):
                try:
                    with open(f"{folder}/x{number}", "wb") as file:
                        file.write(b"x" * (6 << 20))
                except OSError:
                    break
                mib += 6
                holds(mib)
        """,
        "the file system is full, or the desktop fails with the reason",
    ),
    memory(
        "deleted files that are open",
        """
        for number in range(TARGET_MIB // 6):
            try:
                kept.append(open(f"{os.environ['TMPDIR']}/x{number}", "wb"))
                os.unlink(kept[-1].name)
                kept[-1].write(b"x" * (6 << 20))
                kept[-1].flush()
            except OSError:
                break
            holds(6 * number)
        """,
        "the file system is full, or the desktop fails with the reason",
    ),
    memory(
        "empty files and folders without end",
        """
        for number in range(60_000):
            try:
                os.close(os.open(f"{os.environ['TMPDIR']}/{number:0200}", os.O_CREAT | os.O_WRONLY))
            except OSError:
                break
            if number % 1000 == 0:
                holds(number / 1000 * 1.3)  # an inode and a directory entry of a tmpfs
        """,
        "the number of files is limited, or the desktop fails with the reason",
    ),
    memory(
        "pipes",
        """
        size = 0
        resource.setrlimit(resource.RLIMIT_NOFILE, 2 * [resource.getrlimit(resource.RLIMIT_NOFILE)[1]])
        try:
            while size < TARGET_MIB << 20:
                reader, writer = os.pipe()
                kept.append((reader, writer))
                try:
                    fcntl.fcntl(writer, 1031, 1 << 20)
                except OSError:
                    pass
                os.set_blocking(writer, False)
                try:
                    while True:
                        size += os.write(writer, b"x" * 65536)
                except BlockingIOError:
                    pass
                holds(size >> 20)
        except OSError:
            pass
        """,
    ),
    memory(
        "buffers of sockets",
        """
        size = 0
        resource.setrlimit(resource.RLIMIT_NOFILE, 2 * [resource.getrlimit(resource.RLIMIT_NOFILE)[1]])
        try:
            while size < TARGET_MIB << 20:
                pair = socket.socketpair()
                kept.append(pair)
                for one in pair:
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
                    one.setblocking(False)
                    try:
                        while True:
                            size += one.send(b"x" * 65536)
                    except BlockingIOError:
                        pass
                holds(size >> 20)
        except OSError:
            pass
        """,
        needs_groups=True,
    ),
    memory(
        "memfds in the queue of a socket",
        """
        left, right = socket.socketpair()
        for mib in range(0, TARGET_MIB, 6):
            file = os.memfd_create("x")
            os.write(file, b"x" * (6 << 20))
            left.setblocking(False)
            try:
                socket.send_fds(left, [b"x"], [file])
            except OSError:
                kept.append((left, right))
                left, right = socket.socketpair()
                continue
            os.close(file)
            holds(mib)
        """,
        needs_groups=True,
    ),
    memory(
        "page tables of memory that is never written",
        """
        for gib in range(0, 1024):
            try:
                place = mmap.mmap(-1, 1 << 30, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ)
            except (OSError, ValueError, MemoryError):
                break
            kept.append(place)
            for at in range(0, 1 << 30, 2 << 20):
                place[at]
            holds(2 * gib)  # a page for each 2 MiB
            if 2 * gib > TARGET_MIB:
                break
        """,
    ),
    memory(
        "pictures in the X server",
        """
        x = X()
        context = x.new()
        x.send(55, 0, struct.pack("<III", context, x.root, 0))
        for number in range(TARGET_MIB // 8):
            picture = x.new()
            x.send(53, 24, struct.pack("<IIHH", picture, x.root, 2048, 1024))
            x.send(70, 0, struct.pack("<IIhhHH", picture, context, 0, 0, 2048, 1024))
            if x.sync():
                break
        """,
        "the X server refuses the picture or ends",
    ),
    memory(
        "properties in the X server",
        """
        x = X()
        data = b"x" * (200 << 10)
        for number in range(5 * TARGET_MIB):
            x.send(18, 2, struct.pack("<IIIBxxxI", x.root, 9 + number % 60, 31, 8, len(data)) + data)
            if x.sync():
                break
        """,
        "the X server refuses the property or ends",
    ),
    memory(
        "requests that the X server cannot answer",
        """
        for number in range(40):
            try:
                x = X()
            except OSError:  # the server has ended
                break
            kept.append(x)
            x.socket.setblocking(False)
            request = struct.pack("<BBHIhhHHI", 73, 2, 5, x.root, 0, 0, 256, 192, 0xFFFFFFFF)
            sent = 0
            try:
                while sent < 2000:
                    x.socket.send(request)
                    sent += 1
            except OSError:
                pass
        """,
        "the X server keeps no answers beyond its limit",
    ),
)

"""Attacks of guests that refuse to end: after the desktop was closed, or its owner was killed by SIGKILL."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.attacks.parts import Attack


def persistence(name: str, program: str, must: str = "no process lives after close") -> Attack:
    return Attack("persistence", name, must, program)


ENDURE = (
    persistence("kills its shell", "tried(); os.kill(shell, 9); time.sleep(90)"),
    persistence("kills its shell by a signal without a name", "tried(); os.kill(shell, 40); time.sleep(90)"),
    persistence(
        "leaves with an empty environment",
        "leave(); time.sleep(0.2); tried(); time.sleep(90)",
    ),
    persistence(
        "leaves and kills its shell",
        "leave(); time.sleep(0.2); tried(); os.kill(shell, 9); os.kill(job, 9)",
    ),
    persistence("stops its shell", "leave(); tried(); os.kill(shell, signal.SIGSTOP); time.sleep(90)"),
    persistence(
        "fills the shell's pipe",
        """
        pipe = pipe_of_shell()
        tried()
        if os.fork():
            os.kill(shell, 9)
        while True:
            os.write(pipe, b"x" * 65536)
        """,
        "no process lives after close, which waits for no pipe",
    ),
    persistence(
        "forks without end",
        """
        tried()
        while True:
            try:
                os.fork()
            except OSError:
                pass
        """,
    ),
    persistence(
        "moves on by forks",
        """
        tried()
        os.kill(shell, 9)
        while True:
            try:
                if os.fork():
                    os._exit(0)
            except OSError:
                time.sleep(0.01)  # its zombies count until they are collected
        """,
    ),
    persistence(
        "respawns in pairs",
        """
        def watch(other):
            while os.path.exists(f"/proc/{other}/stat") and " Z " not in open(f"/proc/{other}/stat").read():
                time.sleep(0.001)
        tried()
        os.setsid()
        os.kill(shell, 9)
        while True:  # each starts the other again
            first = os.getpid()
            child = os.fork()
            if child == 0:
                os.setsid()
                watch(first)
            else:
                watch(child)
                signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        """,
    ),
    persistence(
        "ignores signals",
        """
        for number in set(range(1, 32)) - {9, 14, 19}:
            signal.signal(number, signal.SIG_IGN)
        leave(); tried(); os.kill(shell, 9); time.sleep(90)
        """,
    ),
    persistence(
        "blocks signals",
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        leave(); tried(); os.kill(shell, 9); time.sleep(90)
        """,
    ),
    persistence(
        "stops itself",
        """
        for _ in range(4):
            if os.fork() == 0:
                os.setsid()
                os.kill(os.getpid(), signal.SIGSTOP)
                time.sleep(90)
        tried(); os.kill(shell, 9); os.kill(os.getpid(), signal.SIGSTOP); time.sleep(90)
        """,
    ),
    persistence(
        "ends its first thread",
        """
        leave(); tried(); os.kill(shell, 9)
        threading.Thread(target=time.sleep, args=(90,)).start()
        libc.syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)
        """,
    ),
    persistence(
        "hides its memory",
        "libc.prctl(4, 0, 0, 0, 0); leave(); tried(); os.kill(shell, 9); time.sleep(90)",
    ),
    persistence(
        "traces its shell",
        """
        tried()
        libc.ptrace(0x4206, shell, None, None); libc.ptrace(0x4207, shell, None, None); time.sleep(90)
        """,
    ),
    persistence(
        "traces its own children, which stop at every signal",
        """
        for _ in range(3):
            child = os.fork()
            if child == 0:
                libc.ptrace(0, 0, None, None)
                os.setsid(); os.kill(os.getpid(), signal.SIGSTOP); time.sleep(90)
            os.waitpid(child, 2)
        tried(); os.kill(shell, 9); time.sleep(90)
        """,
    ),
    persistence(
        "lowers its limits",
        """
        for number in (resource.RLIMIT_MEMLOCK, 10, 11, 12):
            resource.setrlimit(number, (5, 5))
        leave(); tried(); os.kill(shell, 9); time.sleep(90)
        """,
    ),
    persistence(
        "takes another name and other arguments",
        """
        if os.fork() == 0:
            os.setsid()
            without_files()
            os.execve("/usr/bin/python3", ["Xvfb", "-c", "import time; time.sleep(90)"], {"DESKHAND_LEASE": "other"})
        time.sleep(0.2); tried(); os.kill(shell, 9); os.kill(job, 9)
        """,
    ),
    persistence(
        "runs from a file in memory",
        """
        file = os.memfd_create("program", 0)
        os.write(file, open("/usr/bin/sleep", "rb").read())
        if os.fork() == 0:
            os.setsid()
            without_files()
            os.execve(f"/proc/self/fd/{file}", ["sleep", "90"], {})
        time.sleep(0.2); tried(); os.kill(shell, 9); time.sleep(90)
        """,
    ),
    persistence(
        "waits in vfork",
        """
        if os.fork() == 0:
            os.setsid()
            if libc.vfork() == 0:  # the parent cannot be interrupted while the child runs
                libc.sleep(90)
                libc._exit(0)
            os._exit(0)
        time.sleep(0.2); tried(); os.kill(shell, 9); time.sleep(90)
        """,
    ),
    persistence(
        "is the first process of nested namespaces",
        """
        if os.fork() == 0:
            if libc.unshare(0x10000000 | 0x20000000 | 0x40000000):
                say("no namespace")
            if os.fork() == 0:
                os.setsid()
                for _ in range(3):
                    os.fork()
                time.sleep(90)
            os._exit(0)
        time.sleep(0.3); tried(); os.kill(shell, 9); time.sleep(90)
        """,
    ),
    persistence(
        "starts threads and sessions without end",
        """
        def more():
            while True:
                try:
                    if os.fork() == 0:
                        os.setsid()
                        threading.Thread(target=more, daemon=True).start()
                        time.sleep(90)
                except (OSError, RuntimeError):
                    time.sleep(0.01)
        tried()
        os.kill(shell, 9)
        more()
        """,
    ),
    persistence(
        "adopts its orphans",
        """
        libc.prctl(36, 1, 0, 0, 0)
        for _ in range(5):
            leave()
        time.sleep(0.2); tried(); os.kill(shell, 9); os.kill(job, 9); time.sleep(90)
        """,
    ),
    persistence(
        "keeps the X server busy and holds its connections",
        """
        clients = []
        try:
            for _ in range(40):
                clients.append(X())
        except OSError:
            pass
        clients[0].send(36, 0)
        leave("import time; time.sleep(90)")
        tried(); time.sleep(90)
        """,
    ),
)
KILLED = {"leaves and kills its shell", "forks without end", "moves on by forks", "respawns in pairs", "stops itself",
          "ends its first thread", "takes another name and other arguments", "waits in vfork",
          "is the first process of nested namespaces", "starts threads and sessions without end"}  # fmt: skip
PERSISTENCE = (
    *ENDURE,
    *(
        replace(
            attack,
            name=f"{attack.name}; its owner is killed",
            must="no process lives after its owner was killed by SIGKILL",
            kills_owner=True,
        )
        for attack in ENDURE
        if attack.name in KILLED
    ),
)

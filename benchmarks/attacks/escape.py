"""Attacks on the host's files, processes and rights, and on another desktop."""

from __future__ import annotations

from benchmarks.attacks.parts import Attack


def escape(name: str, must: str, program: str) -> Attack:
    return Attack("escape", name, must, program)


ESCAPES = (
    escape(
        "opens a readable file of the host",
        "neither its content nor its folder is read",
        """
        must_not_read(facts["secret"])
        must_not_read("/proc/self/root" + facts["secret"])
        must_fail("folder", os.listdir, os.path.dirname(facts["secret"]))
        must_fail("/etc/shadow", open, "/etc/shadow")
        must_fail("/root", os.listdir, "/root")
        tried()
        """,
    ),
    escape(
        "writes a file that all users may write",
        "the file is not changed",
        """
        must_fail("writable", open, facts["writable"], "ab")
        must_fail("truncate", os.truncate, facts["writable"], 0)
        must_fail("rename", os.rename, facts["writable"], facts["writable"] + "-moved")
        must_fail("unlink", os.unlink, facts["writable"])
        must_fail("chmod", os.chmod, facts["writable"], 0)
        for folder in ("/", "/dev", "/usr", "/etc", "/var/tmp", "/usr/local/bin", "/var/lib", "/opt"):
            must_fail(folder, open, f"{folder}/of-a-guest", "x")
        tried()
        """,
    ),
    escape(
        "links files of the host into its home",
        "no link gives it their content",
        """
        must_fail("hard link", os.link, facts["secret"], "hard")
        os.symlink(facts["secret"], "soft")
        os.symlink(os.path.dirname(facts["secret"]), "folder")
        for path in ("hard", "soft", "folder/secret"):
            must_not_read(path)
        tried()
        """,
    ),
    escape(
        "walks through /proc to the roots of other processes",
        "no root, working folder or descriptor of the host is entered",
        """
        for pid in (1, facts["bystander"], facts["owner"], facts["server"], *facts["neighbors"]):
            for place in ("root", "cwd"):
                must_not_read(f"/proc/{pid}/{place}{facts['secret']}")
            if pid != 1:
                must_fail(f"descriptors of {pid}", os.listdir, f"/proc/{pid}/fd")
        tried()
        """,
    ),
    escape(
        "reads the environments and memory of all processes",
        "no secret of the host is in what it can read",
        """
        for name in ("environ", "cmdline", "mem", "maps", "auxv", "stack", "syscall"):
            for path in glob.glob(f"/proc/[0-9]*/{name}"):
                if name != "cmdline" or path.split("/")[2] != str(os.getpid()):
                    must_not_read(path)
        buffer = ctypes.create_string_buffer(64)
        vector = struct.pack("@PL", ctypes.addressof(buffer), 64)
        for pid in (facts["bystander"], facts["owner"], facts["server"]):
            remote = struct.pack("@PL", 0x400000, 64)
            must_fail("memory", lambda: checked(libc.process_vm_readv(pid, vector, 1, remote, 1, 0)))
        tried()
        """,
    ),
    escape(
        "traces processes of the host",
        "no process of the host or of another desktop is traced",
        """
        for pid in (facts["bystander"], facts["owner"], facts["server"], *facts["neighbors"]):
            for request in (16, 0x4206):  # attach, seize
                if must_fail(f"trace {pid}", lambda: checked(libc.ptrace(request, pid, None, None))) is not None:
                    libc.ptrace(17, pid, None, None)
        tried()
        """,
    ),
    escape(
        "kills processes of the host",
        "the host's process, the X server and the other desktop live",
        """
        for pid in (facts["bystander"], facts["server"], *facts["neighbors"]):
            must_fail(f"kill {pid}", os.kill, pid, signal.SIGKILL)
            must_fail(f"stop {pid}", os.kill, pid, signal.SIGSTOP)
        must_fail("owner", os.kill, facts["owner"], signal.SIGCONT)
        tried()
        """,
    ),
    escape(
        "kills every process that it may",
        "only its own desktop ends",
        """
        tried()
        if os.getuid() != facts["host_uid"] or facts["level"] == "namespaces":
            os.kill(-1, signal.SIGKILL)
        """,
    ),
    escape(
        "takes descriptors of host processes",
        "pidfd_getfd gives it none",
        """
        for pid in (facts["bystander"], facts["owner"], facts["server"]):
            try:
                process = os.pidfd_open(pid)
            except OSError:
                continue
            must_fail("descriptor", lambda: checked(libc.syscall(438, process, 0, 0)))
            must_fail("signal", signal.pidfd_send_signal, process, signal.SIGCONT)
        tried()
        """,
    ),
    escape(
        "uses descriptors that it inherited",
        "none of them is a file, folder or socket of the host",
        """
        for name in os.listdir("/proc/self/fd"):
            try:
                target = os.readlink(f"/proc/self/fd/{name}")
            except OSError:
                continue
            if int(name) > 2 and not target.startswith((here, "/proc/")) and "attack" not in target:
                reached(f"{name} {target}")
        must_fail("terminal", os.open, "/dev/tty", os.O_RDWR)
        tried()
        """,
    ),
    escape(
        "becomes another user",
        "it stays the guest's user, without capabilities",
        """
        other = 0 if os.getuid() else 1
        must_fail("setuid", os.setuid, other)
        must_fail("setresuid", os.setresuid, other, other, other)
        must_fail("setgid", os.setgid, other)
        must_fail("setgroups", os.setgroups, [other])
        must_fail("chown", os.chown, "report", other, other)
        status = open("/proc/self/status").read()
        if "NoNewPrivs:\\t1" not in status or "CapEff:\\t0000000000000000" not in status:
            reached(status)
        header = struct.pack("=Ii", 0x20080522, 0)
        must_fail("capset", lambda: checked(libc.capset(header, b"\\xff" * 24)))
        tried()
        """,
    ),
    escape(
        "runs programs with set user id",
        "they give it no other user id",
        """
        for program in ("su", "mount", "newgrp", "passwd", "sudo", "pkexec", "chsh"):
            path = f"/usr/bin/{program}"
            if os.path.exists(path) and os.stat(path).st_mode & stat.S_ISUID:
                child = subprocess.Popen([path, "--help"], stdin=-1, stdout=-3, stderr=-3)
                try:
                    uids = open(f"/proc/{child.pid}/status").read().partition("Uid:")[2].split()[:4]
                    if "0" in uids and os.getuid() != 0:
                        reached(program)
                except OSError:
                    pass
                child.communicate()
        os.chmod("report", 0o6777)
        tried()
        """,
    ),
    escape(
        "mounts file systems and changes its root",
        "every call is refused",
        """
        for source, kind in ((b"proc", b"proc"), (b"tmpfs", b"tmpfs"), (b"sysfs", b"sysfs"), (b"cgroup", b"cgroup")):
            must_fail(kind, lambda: checked(libc.mount(source, here.encode(), kind, 0, None)))
        must_fail("bind", lambda: checked(libc.mount(b"/", here.encode(), None, 4096, None)))
        must_fail("umount", lambda: checked(libc.umount2(b"/tmp", 2)))
        must_fail("chroot", os.chroot, here)
        must_fail("pivot_root", call, "pivot_root", here.encode(), here.encode())
        must_fail("open_tree", call, "open_tree", -100, b"/", 1)
        must_fail("fsopen", call, "fsopen", b"tmpfs", 0)
        tried()
        """,
    ),
    escape(
        "makes a user namespace and mounts in it",
        "it gains nothing in a nested namespace",
        """
        child = os.fork()
        if child == 0:
            if libc.unshare(0x10000000) == 0:
                say("nested")
                for flags in (0x20000, 0x02000000, 0x04000000, 0x80):
                    must_fail(f"unshare {flags:x}", lambda: checked(libc.unshare(flags)))
                must_fail("mount", lambda: checked(libc.mount(b"tmpfs", here.encode(), b"tmpfs", 0, None)))
                must_fail("chroot and mknod", lambda: os.mknod("device", stat.S_IFBLK | 0o666, os.makedev(8, 0)))
                must_not_read(facts["secret"])
                must_fail("kill", os.kill, facts["bystander"], 9)
            os._exit(0)
        os.waitpid(child, 0)
        must_fail("unshare mounts", lambda: checked(libc.unshare(0x20000)))
        tried()
        """,
    ),
    escape(
        "enters namespaces of host processes",
        "setns is refused",
        """
        for pid in (1, facts["bystander"], facts["owner"], facts["server"]):
            for kind in ("mnt", "net", "pid", "user", "ipc", "uts"):
                try:
                    descriptor = os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY)
                except OSError:
                    continue
                must_fail(f"{kind} of {pid}", lambda: checked(libc.setns(descriptor, 0)))
        tried()
        """,
    ),
    escape(
        "makes and opens devices",
        "no disk, memory or kernel device is opened",
        """
        for name, kind, number in (("disk", stat.S_IFBLK, (8, 0)), ("memory", stat.S_IFCHR, (1, 1))):
            must_fail(name, os.mknod, name, kind | 0o666, os.makedev(*number))
        names = ("mem", "kmem", "port", "kmsg", "kvm", "fuse", "loop-control", "vhost-vsock", "net/tun", "snapshot")
        disks = [path for path in glob.glob("/dev/*") if os.path.exists(path) and stat.S_ISBLK(os.stat(path).st_mode)]
        for path in [*(f"/dev/{name}" for name in names), *disks, "/dev/vda", "/dev/sda", "/dev/uinput", "/dev/vsock"]:
            must_fail(path, os.open, path, os.O_RDONLY | os.O_NONBLOCK)
        tried()
        """,
    ),
    escape(
        "changes the kernel's settings",
        "nothing in /proc/sys, /sys and /proc is open for writing",
        """
        names = ("/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sysrq-trigger", "/proc/kcore",
                 "/proc/sys/vm/drop_caches", "/proc/sys/kernel/hostname", "/sys/kernel/uevent_helper",
                 "/sys/power/state", f"/proc/{facts['bystander']}/oom_score_adj",
                 "/proc/sys/fs/mqueue/queues_max")
        for path in names:
            must_fail(path, os.open, path, os.O_WRONLY)
        tried()
        """,
    ),
    escape(
        "leaves its control group",
        "it can write to no control group",
        """
        for base, folders, files in os.walk("/sys/fs/cgroup"):
            for name in {"cgroup.procs", "tasks", "release_agent", "memory.limit_in_bytes", "pids.max"} & set(files):
                must_fail(f"{base}/{name}", os.open, f"{base}/{name}", os.O_WRONLY)
            folders[:] = folders[:8]
        must_fail("mkdir", os.mkdir, "/sys/fs/cgroup/of-a-guest")
        tried()
        """,
    ),
    escape(
        "makes system calls that reach deep into the kernel",
        "bpf, io_uring, userfaultfd, perf and keyrings are refused",
        """
        for name in ("bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "keyctl", "add_key", "request_key"):
            buffer = ctypes.create_string_buffer(256)
            must_fail(name, call, name, 0, ctypes.addressof(buffer), 0, 0, 0, 0)
        must_fail("init_module", lambda: checked(libc.syscall(175 if os.uname().machine == "x86_64" else 105, 0, 0, 0)))
        tried()
        """,
    ),
    escape(
        "changes clock and host name",
        "both are refused",
        """
        must_fail("clock", lambda: time.clock_settime(time.CLOCK_REALTIME, time.time()))
        must_fail("name", socket.sethostname, socket.gethostname())
        tried()
        """,
    ),
    escape(
        "takes the processor from others",
        "priority, real-time scheduling and I/O priority cannot be raised",
        """
        must_fail("nice", os.setpriority, os.PRIO_PROCESS, 0, -5)
        for kind in (os.SCHED_RR, os.SCHED_FIFO):
            must_fail("real-time", os.sched_setscheduler, 0, kind, os.sched_param(1))
        must_fail("ioprio", call, "ioprio_set", 1, 0, 1 << 13)
        must_fail("owner", os.setpriority, os.PRIO_PROCESS, facts["owner"], 19)
        tried()
        """,
    ),
    escape(
        "raises its limits",
        "no hard limit can be raised and the kernel still ends guests first",
        """
        for number in (resource.RLIMIT_FSIZE, resource.RLIMIT_NPROC, resource.RLIMIT_DATA, resource.RLIMIT_CORE,
                       resource.RLIMIT_NOFILE):
            _, hard = resource.getrlimit(number)
            if hard != resource.RLIM_INFINITY:
                try:
                    resource.setrlimit(number, (hard + 1, hard + 1))
                    reached(number)
                except (OSError, ValueError):
                    pass
            elif number != resource.RLIMIT_NOFILE:
                reached(f"no limit {number}")
        must_fail("prlimit", lambda: resource.prlimit(facts["bystander"], resource.RLIMIT_CPU, (1, 1)))
        with open("/proc/self/oom_score_adj") as file:
            before = int(file.read())
        for value in ("0", "-1000"):
            try:
                with open("/proc/self/oom_score_adj", "w") as file:
                    file.write(value)
            except OSError:
                continue
            if facts["is_privileged"]:
                reached(f"oom_score_adj from {before} to {value}")
        tried()
        """,
    ),
    escape(
        "connects to the X server of another desktop",
        "it is refused without that desktop's cookie, and cannot read the cookie",
        """
        def connect(cookie):
            return X(facts["neighbor_display"], cookie)
        must_fail("own cookie", connect, None)
        must_fail("zeros", connect, bytes(16))
        must_fail("cookie", open, facts["neighbor_authority"], "rb")
        must_fail("home", os.listdir, facts["neighbor_home"])
        tried()
        """,
    ),
    escape(
        "reads the files of its own X server",
        "neither framebuffer nor cookie file of the server is opened",
        """
        for name in ("screen/Xvfb_screen0", "screen/authority", "jail.log", "xvfb.log", "filter"):
            for mode in (os.O_RDONLY, os.O_WRONLY):
                must_fail(name, os.open, f"{facts['folder']}/{name}", mode)
        try:
            for name in os.listdir(os.path.dirname(facts["folder"])):
                if not facts["folder"].endswith(f"/{name}"):
                    reached(name)
        except OSError:
            pass
        tried()
        """,
    ),
    escape(
        "makes the X server read and write for it",
        "font paths and keyboard maps open no file for it",
        """
        x = X()
        folder = os.path.dirname(facts["secret"]).encode()
        for path in (folder, b"catalogue:" + folder, here.encode()):
            x.send(51, 0, struct.pack("<HxxB", 1, len(path)) + path)
            x.sync()
        x.send(45, 0, struct.pack("<IHxx", x.new(), 6) + b"secret")
        if not x.sync():
            reached("font")
        tried()
        """,
    ),
)

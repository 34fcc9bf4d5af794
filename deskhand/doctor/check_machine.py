"""Check this machine for `deskhand doctor`. Entry points: `check_machine` and `format_results`.

The demo cannot run if a `needed` check fails; the others affect speed or isolation. Nothing is changed.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata, resources
from pathlib import Path

from deskhand.venvs import setup_command

SHARED_MEMORY_MIB = 64
"""Required free space in /dev/shm, for the screens of several desktops."""
MEMORY_GIB = 4
CGROUP_FIX = (
    "delegate control groups: systemd-run --user --scope -p Delegate=yes COMMAND; in a container, docker run "
    "--security-opt writable-cgroups=true"
)
TRAINING_PACKAGES = ("torch", "transformers", "peft", "tokenizers", "jinja2")


@dataclass(frozen=True)
class ProbeResult:
    """Result of one check, and a fix if it failed."""

    name: str
    ok: bool
    detail: str
    fix: str = ""
    needed: bool = True


def check_machine() -> list[ProbeResult]:
    """Run all checks, in the order in which failures are best fixed."""
    torch = _start_torch() if _installed("torch") else None  # takes longest, so it runs beside the others
    return [*_python(), *_debian(), *_machine(), *_isolation(), *_homes(), *_training(torch)]


def format_results(findings: list[ProbeResult]) -> Iterator[str]:
    """Return one line per result, with its fix if it failed, and a summary."""
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        state = "ok  " if finding.ok else "FAIL" if finding.needed else "note"
        fix = f"  ->  {finding.fix}" if not finding.ok and finding.fix else ""
        yield f"{state}  {finding.name:{width}}  {finding.detail}{fix}"
    wrong = sum(finding.needed and not finding.ok for finding in findings)
    yield f"{wrong} required check{'' if wrong == 1 else 's'} failed" if wrong else "all required checks passed"


def debian_packages() -> list[str]:
    """Debian packages of the local desktop, from the list that setup installs."""
    text = resources.files("deskhand.desktop.local").joinpath("packages.txt").read_text(encoding="utf-8")
    return [line for line in (line.split("#")[0].strip() for line in text.splitlines()) if line]


def _python() -> Iterator[ProbeResult]:
    version = ".".join(map(str, sys.version_info[:3]))
    is_supported = sys.version_info >= (3, 11)
    yield ProbeResult("python", is_supported, f"{version} in {sys.prefix}", "install Python 3.11 or newer")
    try:
        requirements = metadata.requires("deskhand") or []
    except metadata.PackageNotFoundError:
        yield ProbeResult("packages", True, "running from a checkout, not installed", needed=False)
    else:
        core = [requirement for requirement in requirements if "extra ==" not in requirement]
        names = [name[0] for requirement in core if (name := re.match(r"[\w.-]+", requirement))]
        missing = [name for name in names if not _installed(name)]
        found = f"missing: {', '.join(missing)}" if missing else f"all {len(names)} core packages"
        yield ProbeResult("packages", not missing, found, setup_command(""))
    missing = [name for name in TRAINING_PACKAGES if not _installed(name)]
    versions = [f"{name} {metadata.version(name)}" for name in TRAINING_PACKAGES[:2] if not missing]
    found = f"missing: {', '.join(missing)}" if missing else ", ".join(versions)
    yield ProbeResult("training packages", not missing, found, setup_command())


def _installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _debian() -> Iterator[ProbeResult]:
    from deskhand.desktop.applications import catalog, install

    packages = debian_packages()
    if shutil.which("dpkg-query") is None:
        missing = [name for name in ("Xvfb", "openbox", "bwrap", "dbus-daemon") if shutil.which(name) is None]
        found = f"missing programs: {', '.join(missing)}" if missing else "all programs are installed"
        fix = f"install your system's equivalents of: {' '.join(packages)}"
        yield ProbeResult("desktop packages", not missing, f"not a Debian system; {found}", fix)
        return
    missing = install.missing(packages)
    found = f"missing: {', '.join(missing)}" if missing else f"all {len(packages)} Debian packages"
    fix = f"apt-get install --no-install-recommends {' '.join(missing)}"
    yield ProbeResult("desktop packages", not missing, found, fix)
    absent = [profile.name for profile in catalog.PROFILES.values() if not profile.installed]
    found = f"not installed: {', '.join(absent)}" if absent else f"all {len(catalog.PROFILES)}"
    fix = f"run as root: deskhand desktop install {' '.join(absent)}"
    yield ProbeResult("applications", not absent, found, fix, needed=False)


def _machine() -> Iterator[ProbeResult]:
    from deskhand.desktop import host_capacity

    cores = len(os.sched_getaffinity(0))
    fix = "the demo needs two or more cores to finish in time"
    yield ProbeResult("cores", cores >= 2, f"{cores}", fix, needed=False)
    memory_gib = host_capacity.available_memory_mib() / 1024
    fix = f"free memory: {MEMORY_GIB} GiB are required"
    yield ProbeResult("memory", memory_gib >= MEMORY_GIB, f"{memory_gib:.1f} GiB available", fix)
    free_mib = shutil.disk_usage("/dev/shm").free / 2**20 if os.path.exists("/dev/shm") else 0.0
    fix = "mount a larger tmpfs on /dev/shm (in a container: --shm-size=1g)"
    yield ProbeResult("/dev/shm", free_mib >= SHARED_MEMORY_MIB, f"{free_mib:.0f} MiB free", fix, needed=False)
    count, why = host_capacity.max_desktops()
    found, fix = f"memory for {count} small desktops ({why})", "the demo needs 4 to finish in time"
    yield ProbeResult("desktops", count >= 4, found, fix, needed=False)
    free_gib = shutil.disk_usage(Path.cwd()).free / 2**30
    yield ProbeResult("disk", free_gib >= 1, f"{free_gib:.0f} GiB free here", "free at least 1 GiB for runs")


def _isolation() -> Iterator[ProbeResult]:
    if importlib.util.find_spec("xcffib") is None:
        return
    from deskhand.desktop.local.cgroup import hierarchies
    from deskhand.desktop.local.guest_user import guest_uids
    from deskhand.desktop.local.isolation import available_isolation, missing_protections

    groups, description = hierarchies()
    found = description if groups else f"{description}; limits are checked four times a second instead"
    yield ProbeResult("control groups", bool(groups), found, CGROUP_FIX, needed=False)

    level, reason = available_isolation()
    users = "separate users" if guest_uids() else "this user"
    missing = missing_protections(level)
    if level == "namespaces":
        found = f"namespaces: guests have no access to the host or a network, and run as {users}"
        yield ProbeResult("isolation", not missing, "; ".join([found, *missing]), needed=False)
        return
    found = "; ".join([f"plain ({reason}): guests run as {users} with Landlock and seccomp", *missing])
    fix = "allow user namespaces" + ("; until then run only tasks you trust" if missing else " for network isolation")
    yield ProbeResult("isolation", False, found, fix, needed=False)


def _homes() -> Iterator[ProbeResult]:
    if importlib.util.find_spec("xcffib") is None:
        return
    from deskhand.desktop.local.home_template import best_method
    from deskhand.desktop.local.runtime_dir import tmpfs
    from deskhand.errors import ConfigError

    try:
        method, reason = best_method(tmpfs())
    except ConfigError as error:
        method, reason = "none", str(error)
    how = {"overlay": "overlay of a template", "reflink": "reflink clone of a template", "copy": "copy of a template"}
    found = how.get(method, "unavailable") + ("" if method == "overlay" else f": {reason}")
    yield ProbeResult("homes", method != "none", found, "free space in /dev/shm", needed=False)


def _start_torch(*arguments: str) -> subprocess.Popen[str]:
    program = [sys.executable, *(arguments or ("-m", "deskhand.doctor.torch_probe"))]
    return subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8")


def _training(torch: subprocess.Popen[str] | None) -> Iterator[ProbeResult]:
    weights = Path(str(resources.files("deskhand.models.tiny"))) / "weights"
    size_mb = sum(path.stat().st_size for path in weights.glob("*.safetensors")) / 1e6
    found = f"{size_mb:.1f} MB in the package" if size_mb else f"no weights in {weights}"
    yield ProbeResult("bundled policy", size_mb > 0, found, "reinstall the package, which contains the weights")
    if torch is not None:
        found, why = torch.communicate()
        if torch.returncode != 0:  # imports all of torch, whose error says more
            program = "import torch; from deskhand.doctor.torch_probe import describe; print(describe(torch._C))"
            torch = _start_torch("-c", program)
            found, why = torch.communicate()
        last = (why.strip().splitlines() or ["no message"])[-1]
        yield ProbeResult("torch", torch.returncode == 0, found.strip() or last, "reinstall torch")

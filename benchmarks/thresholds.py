"""Output of a benchmark: environment, measurements, and thresholds. A missed threshold is exit code 1."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def hardware() -> str:
    """Return CPU, usable cores, memory, kernel, current load, and the GPUs if there are any."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    processor = next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine()
    )
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cores = len(os.sched_getaffinity(0))
    host = f"{processor}, {cores} cores, {memory_gib:.0f} GiB, Linux {platform.release()}"
    return "; ".join((f"{host}, load {os.getloadavg()[0]:.1f}", *gpus()))


def gpus() -> list[str]:
    """Return name, memory and driver of each NVIDIA GPU, as nvidia-smi prints them."""
    command = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    if shutil.which(command[0]) is None:
        return []
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return done.stdout.strip().splitlines() if done.returncode == 0 else []


def commit() -> str:
    """Return the commit of the checkout and whether it has local changes beside docs/evidence/.

    Where the files were copied without their history, the environment variable DESKHAND_COMMIT says the commit,
    and the result names it as the source.
    """
    if copied := os.environ.get("DESKHAND_COMMIT"):
        return f"{copied} (DESKHAND_COMMIT)"
    if shutil.which("git") is None:
        return "unknown"

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()

    status = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":(exclude)docs/evidence")
    changed = " with local changes" if status else ""
    return (git("rev-parse", "--short=12", "HEAD") or "unknown") + changed


def print_head() -> None:
    """Print hardware and commit."""
    print(f"hardware: {hardware()}\ncommit:   {commit()}", flush=True)


def parser_of(description: str | None, full: str | None = None) -> argparse.ArgumentParser:
    """Return the options of a benchmark. `size` is "small", "full" or "smoke" (runs every part, measures nothing)."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument("--full", dest="size", action="store_const", const="full", default="small", help=full)
    sizes.add_argument(
        "--smoke",
        dest="size",
        action="store_const",
        const="smoke",
        help="run every part at its smallest size; measurements are not meaningful",
    )
    return parser


@dataclass
class Thresholds:
    """Checks measurements against thresholds and collects the missed ones."""

    missed: list[str] = field(default_factory=list)

    def check(self, name: str, passed: bool, measured: str, threshold: str) -> None:
        """Print a measurement with its threshold."""
        print(f"{'pass' if passed else 'FAIL'}  {name}: {measured} (threshold: {threshold})", flush=True)
        if not passed:
            self.missed.append(name)

    @property
    def met(self) -> bool:
        return not self.missed

    def finish(self) -> None:
        """Print the result and exit, with 1 if a threshold was missed."""
        print("all thresholds met" if self.met else f"missed: {', '.join(self.missed)}", flush=True)
        raise SystemExit(0 if self.met else 1)

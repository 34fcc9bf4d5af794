"""What a benchmark prints around its figures. Invariant: a figure with a bar says the bar and whether it was met, and a missed bar
is exit code 1."""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def hardware() -> str:
    """Processor, usable cores, memory, kernel, and the load when this was asked."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    processor = next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine()
    )
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cores = len(os.sched_getaffinity(0))
    return (
        f"{processor}, {cores} cores, {memory_gib:.0f} GiB, Linux {platform.release()}, load {os.getloadavg()[0]:.1f}"
    )


def commit() -> str:
    """The checkout's commit, and whether files differ from it."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()

    changed = " with local changes" if git("status", "--porcelain", "--untracked-files=no") else ""
    return (git("rev-parse", "--short=12", "HEAD") or "unknown") + changed


def print_head() -> None:
    """Hardware and commit, two lines."""
    print(f"hardware: {hardware()}\ncommit:   {commit()}", flush=True)


def parser_of(description: str | None, full: str | None = None) -> argparse.ArgumentParser:
    """Options of a benchmark. `size` is "small", "full" or "smoke", which runs every part and whose figures say nothing."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument("--full", dest="size", action="store_const", const="full", default="small", help=full)
    sizes.add_argument(
        "--smoke", dest="size", action="store_const", const="smoke", help="see that it runs; no figure counts"
    )
    return parser


@dataclass
class Bars:
    """Collects bars. `met` is False as soon as one was missed."""

    missed: list[str] = field(default_factory=list)

    def check(self, name: str, passed: bool, figure: str, bar: str) -> None:
        """Print a figure with its bar."""
        print(f"{'pass' if passed else 'FAIL'}  {name}: {figure} (bar: {bar})", flush=True)
        if not passed:
            self.missed.append(name)

    @property
    def met(self) -> bool:
        return not self.missed

    def finish(self) -> None:
        """The last line; exits with 1 when a bar was missed."""
        print("all bars met" if self.met else f"missed: {', '.join(self.missed)}", flush=True)
        raise SystemExit(0 if self.met else 1)

"""Run benchmarks at full size and write their pages: `python -m benchmarks.evidence [NAME ...]`, or `make evidence`.

Output, command, date, hardware and commit go to docs/evidence/NAME.md. A page is replaced when its benchmark ends,
passed or not. Exits with 1 if a benchmark failed or missed a threshold. "NAME OPTION ..." passes options to the
benchmark; their words, except paths, are part of the page's name.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from benchmarks.thresholds import ROOT, commit, hardware

PAGES = ROOT / "docs" / "evidence"
COMMANDS = (Path(__file__).stem, "gpu_pages")
"""Modules that run other benchmarks."""
INTERRUPT_S = 30.0
"""Time that an interrupted benchmark has to stop its desktops and remove its files, before it is killed."""


def names() -> list[str]:
    """Return the benchmarks that can be run; `learning`, the longest, comes last."""
    found = [path.stem for path in (ROOT / "benchmarks").glob("*.py") if '__name__ == "__main__"' in path.read_text()]
    return sorted((name for name in found if name not in COMMANDS), key=lambda name: (name == "learning", name))


def words(name: str) -> list[str]:
    """Return the Python arguments of a benchmark at full size; its own options may follow the name."""
    benchmark, *options = name.split()
    return ["-m", f"benchmarks.{benchmark}", "--full", *options]


def title_of(name: str) -> str:
    """Return the name of a page without its suffix: the words that are not paths."""
    return re.sub(r"\W+", "_", " ".join(word for word in name.split() if "/" not in word))


def run(name: str, pages: Path) -> int:
    """Run a benchmark, print its output and write its page; return its exit code."""
    return write_page(title_of(name), words(name), pages)


def write_page(title: str, arguments: Sequence[str], pages: Path, limit_s: float | None = None) -> int:
    """Run Python with these arguments, print the output and write the page; return the exit code.

    After `limit_s` the process is interrupted. The page then says so, and the result is not 0.
    """
    head = {"command": f"python {' '.join(arguments)}", "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())}
    head |= {"hardware": hardware(), "commit": commit()}
    lines: list[str] = []
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    is_late = threading.Event()

    def end() -> None:
        is_late.set()
        stop(process)

    timer = threading.Timer(limit_s or threading.TIMEOUT_MAX, end)
    timer.daemon = True
    timer.start()
    try:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line.rstrip().replace(f"{ROOT}/", ""))
        code = process.wait()
    finally:
        timer.cancel()
        stop(process)
    head["exit code"] = f"{code}, stopped after {limit_s:.0f} s" if is_late.is_set() else str(code)
    pages.mkdir(parents=True, exist_ok=True)
    partial = pages / f"{title}.md.part"
    partial.write_text(page_of(title, head, lines), encoding="utf-8")
    partial.rename(pages / f"{title}.md")
    return code or int(is_late.is_set())


def stop(process: subprocess.Popen[str]) -> None:
    """Interrupt a process that leads a session, and kill its process group if it does not end."""
    if process.poll() is not None:
        return
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)
    try:
        process.wait(INTERRUPT_S)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def page_of(name: str, head: dict[str, str], lines: list[str]) -> str:
    """Return the page of a benchmark's output, with tables as Markdown and the rest as it was printed."""
    parts = [f"# {name}", "\n".join(f"- {key}: {value}" for key, value in head.items())]
    for is_table, printed in itertools.groupby(lines, lambda line: line.startswith("| ")):
        text = "\n".join(printed).strip("\n")
        if text:
            parts.append(text if is_table else f"```text\n{text}\n```")
    return "\n\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"benchmarks to run (default: all of {', '.join(names())})"
    )
    parser.add_argument("--out", type=Path, default=PAGES, help="output directory (default: docs/evidence)")
    options = parser.parse_args()
    unknown = sorted({name.split(maxsplit=1)[0] for name in options.names} - set(names()))
    if unknown:
        parser.error(f"unknown benchmark {', '.join(unknown)}; available: {', '.join(names())}")
    failed = []
    for name in options.names or names():
        print(f"== {name}", flush=True)
        if run(name, options.out):
            failed.append(name)
    print(f"failed or missed a threshold: {', '.join(failed)}" if failed else "every benchmark passed its thresholds")
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()

"""Every benchmark at its full size: `python -m benchmarks.evidence [NAME ...]`, or `make evidence`.

What each prints goes, with the command, the date, the hardware and the commit, to docs/evidence/<name>.md. A page is replaced as a
whole when its benchmark has ended, whether its bars were met or not; exit code 1 when one ended with an error or missed a bar.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.thresholds import ROOT, commit, hardware

PAGES = ROOT / "docs" / "evidence"


def names() -> list[str]:
    """The benchmarks that can be run, that of learning last: it takes longest."""
    found = [path.stem for path in (ROOT / "benchmarks").glob("*.py") if '__name__ == "__main__"' in path.read_text()]
    return sorted((name for name in found if name != Path(__file__).stem), key=lambda name: (name == "learning", name))


def words(name: str) -> list[str]:
    """How to run one at its full size."""
    return ["-m", f"benchmarks.{name}", "--full"]


def run(name: str, pages: Path) -> int:
    """Run one, show what it prints, write its page; returns its exit code."""
    head = {"command": f"python {' '.join(words(name))}", "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())}
    head |= {"hardware": hardware(), "commit": commit()}
    lines: list[str] = []
    with subprocess.Popen(
        [sys.executable, *words(name)],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line.rstrip())
    head["exit code"] = str(process.returncode)
    pages.mkdir(parents=True, exist_ok=True)
    partial = pages / f"{name}.md.part"
    partial.write_text(page_of(name, head, lines), encoding="utf-8")
    partial.rename(pages / f"{name}.md")
    return process.returncode


def page_of(name: str, head: dict[str, str], lines: list[str]) -> str:
    """The page of what was printed: as it was, and tables as tables."""
    parts = [f"# {name}", "\n".join(f"- {key}: {value}" for key, value in head.items())]
    for is_table, printed in itertools.groupby(lines, lambda line: line.startswith("| ")):
        parts.append("\n".join(line if is_table else f"    {line}".rstrip() for line in printed))
    return "\n\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names())}; all when none is named")
    parser.add_argument("--out", type=Path, default=PAGES)
    options = parser.parse_args()
    unknown = sorted(set(options.names) - set(names()))
    if unknown:
        parser.error(f"no benchmark is named {', '.join(unknown)}; there are {', '.join(names())}")
    failed = []
    for name in options.names or names():
        print(f"== {name}", flush=True)
        if run(name, options.out):
            failed.append(name)
    print(f"missed a bar or failed: {', '.join(failed)}" if failed else "every benchmark met its bars")
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()

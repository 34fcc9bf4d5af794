"""`make test` shares the tests between processes file by file: what a file's tests have in common is made once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

HERE = Path(__file__).parent
SIX = """
import os
import pytest

@pytest.mark.parametrize("number", range(6))
def test_it(number):
    with open(os.environ["DONE"], "a") as file:
        print(__file__, os.environ.get("PYTEST_XDIST_WORKER"), file=file)
"""


def test_the_tests_of_a_file_and_all_against_one_peer_are_run_by_one_process(tmp_path):
    """AReaL's jobs were once done twice at the same time, by both processes, with the same ports."""
    files = ["one/test_a.py", "one/test_b.py", "contract/peer/test_c.py", "contract/peer/test_d.py"]
    said, lines = run_tests(tmp_path, files)
    assert "--minutes" not in said
    processes: defaultdict[str, set[str]] = defaultdict(set)
    for file, process in lines:
        path = Path(file).relative_to(tmp_path / "tests")
        processes["contract" if path.parts[0] == "contract" else str(path)].add(process)
    assert len(lines) == 6 * len(files)
    assert {name: len(those) for name, those in processes.items()} == {
        "one/test_a.py": 1,
        "one/test_b.py": 1,
        "contract": 1,
    }


def test_benchmarks_come_last_and_late_tests_are_counted_and_not_run(tmp_path):
    files = ["benchmarks/test_a.py", "one/test_b.py"]
    said, lines = run_tests(tmp_path, files, "-n", "0", "--minutes", "1")
    assert [Path(file).name for file, _ in lines] == ["test_b.py"] * 6 + ["test_a.py"] * 6
    assert "--minutes" not in said
    said, lines = run_tests(tmp_path, files, "--minutes", "0")
    assert not lines
    assert "12 tests not started: --minutes had passed" in said
    assert "12 skipped" in said


def run_tests(folder: Path, files: list[str], *options: str) -> tuple[str, list[list[str]]]:
    """Run six tests per file as `make test` does. Return what was printed, and file and process of each test."""
    for name in files:
        path = folder / "tests" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(SIX)
    (folder / "tests" / "conftest.py").write_text((HERE / "conftest.py").read_text())
    (folder / "pytest.ini").write_text(f"[pytest]\ntestpaths = tests\npythonpath = {HERE / 'support'}\n")
    words = [sys.executable, "-m", "pytest", *shared_by(2), *options, "-q", "-p", "no:cacheprovider"]
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    done = folder / "done"
    done.write_text("")
    ran = subprocess.run(words, cwd=folder, env={**own, "DONE": str(done)}, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout, [line.split() for line in done.read_text().splitlines()]


def shared_by(processes: int) -> list[str]:
    """How `make test` calls pytest."""
    (line,) = [line for line in (HERE.parent / "Makefile").read_text().splitlines() if "-n $(JOBS)" in line]
    return line.split("pytest ", 1)[1].replace("$(JOBS)", str(processes)).replace("$(ARGS)", "").split()

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
        print(__file__, os.environ["PYTEST_XDIST_WORKER"], file=file)
"""


def test_the_tests_of_a_file_and_all_against_one_peer_are_run_by_one_process(tmp_path):
    """AReaL's jobs were once done twice at the same time, by both processes, with the same ports."""
    files = ["one/test_a.py", "one/test_b.py", "contract/peer/test_c.py", "contract/peer/test_d.py"]
    for name in files:
        path = tmp_path / "tests" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(SIX)
    (tmp_path / "tests" / "conftest.py").write_text((HERE / "conftest.py").read_text())
    (tmp_path / "pytest.ini").write_text(f"[pytest]\ntestpaths = tests\npythonpath = {HERE / 'support'}\n")
    words = [sys.executable, "-m", "pytest", *shared_by(2), "-q", "-p", "no:cacheprovider"]
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    done = tmp_path / "done"
    ran = subprocess.run(
        words, cwd=tmp_path, env={**own, "DONE": str(done)}, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    processes: defaultdict[str, set[str]] = defaultdict(set)
    lines = [line.split() for line in done.read_text().splitlines()]
    for file, process in lines:
        path = Path(file).relative_to(tmp_path / "tests")
        processes["contract" if path.parts[0] == "contract" else str(path)].add(process)
    assert len(lines) == 6 * len(files)
    assert {name: len(those) for name, those in processes.items()} == {
        "one/test_a.py": 1,
        "one/test_b.py": 1,
        "contract": 1,
    }


def shared_by(processes: int) -> list[str]:
    """How `make test` calls pytest."""
    (line,) = [line for line in (HERE.parent / "Makefile").read_text().splitlines() if "-n $(JOBS)" in line]
    return line.split("pytest ", 1)[1].replace("$(JOBS)", str(processes)).replace("$(ARGS)", "").split()

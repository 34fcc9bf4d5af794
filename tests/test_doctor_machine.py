"""`deskhand doctor`: what it says of torch is true, without importing all of torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROBE = """
import sys
from deskhand.doctor.torch_probe import describe, native_torch
print(describe(native_torch()))
print([name for name in ("torch.nn", "torch._decomp", "sympy") if name in sys.modules])
"""
TORCH = "import torch; print(torch.get_num_threads(), 'threads,', 'a' if torch.cuda.is_available() else 'no', 'GPU')"
DOCTOR = """
from deskhand.doctor.check_machine import check_machine
print(*((each.ok, each.detail) for each in check_machine() if each.name == "torch"))
"""


def printed(program: str, **environment: str) -> list[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, env=env, check=True).stdout.splitlines()


def test_the_probe_of_torch_says_what_torch_says() -> None:
    said, modules = printed(PROBE, OMP_NUM_THREADS="1")
    assert [said] == printed(TORCH, OMP_NUM_THREADS="1")
    assert said.startswith("1 threads, ")
    assert modules == "[]"


def test_a_torch_that_cannot_be_imported_is_named_by_its_error(tmp_path: Path) -> None:
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('libcudart.so.13: cannot open shared object file')\n")
    said = printed(DOCTOR, PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    assert said == ["(False, 'ImportError: libcudart.so.13: cannot open shared object file')"]


def test_a_torch_that_the_probe_cannot_read_is_imported(tmp_path: Path) -> None:
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("class _C:\n    get_num_threads = staticmethod(lambda: 7)\n")
    said = printed(DOCTOR, PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    assert said == ["(True, '7 threads, no GPU')"]

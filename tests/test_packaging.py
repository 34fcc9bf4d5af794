"""Wheel and source distribution are complete, and an installed Deskhand works where there is no checkout."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from deskhand.config.shipped import AREAL, find_config, list_configs

ROOT = Path(__file__).parents[1]
NAMES_OF_A_CHECKOUT = re.compile(r"make (setup|demo|test)|scripts/environment|\b(configs|docs|tests|examples)/")
KNOWS_BOTH = ("venvs.py", "config/shipped.py")
"""Modules that say what a checkout has only where they run from one."""


def built(target: str, folder: Path) -> Path:
    """The wheel or the source distribution of this checkout."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return next(folder.iterdir())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    return built("wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """A folder with what the wheel installs. All other packages are those of this Python."""
    folder = tmp_path_factory.mktemp("site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def environment_of(installed: Path) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("DESKHAND_")}
    return {**own, "PYTHONPATH": str(installed)}


def run(installed: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the installed `deskhand` in a folder that is no checkout."""
    command = [sys.executable, "-m", "deskhand", *words]
    environment = environment_of(installed)
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_the_wheel_has_every_file_of_the_package_and_what_it_ships_besides(wheel) -> None:
    packed = set(zipfile.ZipFile(wheel).namelist())
    own = {path.relative_to(ROOT) for path in (ROOT / "deskhand").rglob("*") if path.is_file()}
    wanted = {path.as_posix() for path in own if path.suffix != ".pyc"}
    wanted |= {f"deskhand/{path.relative_to(ROOT)}" for path in (ROOT / "configs").rglob("*.yaml")}
    wanted |= {f"deskhand/{path.relative_to(ROOT)}" for path in (ROOT / "requirements").iterdir()}
    assert wanted | {"deskhand/scripts/environment", "deskhand/py.typed"} <= packed
    metadata = next(name for name in packed if name.endswith("METADATA"))
    about = zipfile.ZipFile(wheel).read(metadata).decode()
    for extra in ("train", "office", "gymnasium", "miniwob", "quantized", "wandb"):
        assert f"Provides-Extra: {extra}\n" in about
    for minor in range(11, 15):
        assert f"Programming Language :: Python :: 3.{minor}\n" in about


def test_the_source_distribution_has_every_tracked_file(tmp_path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("this is no checkout of git")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    with tarfile.open(built("sdist", tmp_path)) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    assert {name for name in listed.splitlines() if (ROOT / name).exists()} <= packed


def test_configs_are_found_by_name_outside_of_a_checkout(installed, tmp_path) -> None:
    for name in ("tiny_cpu", "tiny_cpu.yaml", "configs/tiny_cpu.yaml"):
        done = run(installed, tmp_path, "tasks", "resolve", name)
        assert done.returncode == 0, done.stderr
        assert "terminal_run" in done.stdout
    done = run(installed, tmp_path, "tasks", "resolve", "tiny_gpu")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "use a shipped config: " in done.stderr
    assert set(list_configs()) <= set(re.findall(r"\w+", done.stderr))
    assert not list(tmp_path.iterdir())


def test_hints_of_an_installed_package_name_what_is_there(installed, tmp_path) -> None:
    program = (
        "import deskhand, deskhand.venvs as v; from pathlib import Path; "
        "assert deskhand.__version__; print(v.setup_command()); print(v.package_hint('wandb')); "
        "print(v.install_command('vllm'))"
    )
    words = [sys.executable, "-c", program]
    done = subprocess.run(
        words,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=True,
    )
    setup, wandb, environment = done.stdout.splitlines()
    assert (setup, wandb) == ("pip install 'deskhand[train]'", "pip install 'deskhand[wandb]'")
    bash, script, name = environment.split()
    assert (bash, name) == ("bash", "vllm")
    assert Path(script).is_relative_to(installed)
    usage = subprocess.run(["bash", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "NAME is one of: " in usage.stderr
    assert " vllm" in usage.stderr


def texts_of(path: Path) -> Iterator[tuple[int, str]]:
    """Texts of a module that are no docstrings, with their lines."""
    tree = ast.parse(path.read_text())
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.lineno, node.value


def test_no_message_names_what_only_a_checkout_has() -> None:
    package = ROOT / "deskhand"
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text[:80]}"
        for path in sorted(package.rglob("*.py"))
        if path.relative_to(package).as_posix() not in KNOWS_BOTH
        for line, text in texts_of(path)
        if NAMES_OF_A_CHECKOUT.search(text) or ("benchmarks." in text and "in a checkout" not in text)
    ]
    assert not found, "\n".join(found)


def test_a_file_comes_before_a_shipped_config_of_its_name(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_config(Path("tiny_cpu")).is_file()
    assert find_config(Path("absent")) == Path("absent")
    (tmp_path / "tiny_cpu").mkdir()
    assert find_config(Path("tiny_cpu")).is_file(), "a folder is no config"
    (tmp_path / "tiny_cpu.yaml").write_text("seed: 1\n")
    assert find_config(Path("tiny_cpu.yaml")) == Path("tiny_cpu.yaml")


def test_experiments_of_areal_are_found_with_their_prefix_and_without_it() -> None:
    assert all(name.startswith(AREAL) for name in list_configs(AREAL))
    assert not [name for name in list_configs() if "/" in name]
    for name in ("tiny_cpu", "areal/tiny_cpu", "configs/areal/tiny_cpu.yaml"):
        assert find_config(Path(name), AREAL).parts[-2:] == ("areal", "tiny_cpu.yaml")
    assert find_config(Path("tiny_cpu")).parts[-2:] == ("configs", "tiny_cpu.yaml")

"""`scripts/environment` installs exactly what a file pins, once, and says what is wrong with a file that pins too
little."""

from __future__ import annotations

import os
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
from environments import python_of

ROOT = Path(__file__).parent.parent


def wheel(folder: Path, name: str, needs: str = "") -> None:
    """A package of one module that says its name."""
    about = f"{name}-1.0.dist-info"
    requirement = f"Requires-Dist: {needs}\n" if needs else ""
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{name}.py", f"NAME = {name!r}\n")
        archive.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{requirement}")
        archive.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{about}/RECORD", "")


BACKEND = """
import zipfile
from pathlib import Path

def build_wheel(folder, config_settings=None, metadata_directory=None):
    with zipfile.ZipFile(Path(folder, "peer-2.0-py3-none-any.whl"), "w") as archive:
        archive.write("peer/__init__.py")
        archive.writestr("peer-2.0.dist-info/METADATA", "Metadata-Version: 2.1\\nName: peer\\nVersion: 2.0\\n")
        archive.writestr("peer-2.0.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any")
        archive.writestr("peer-2.0.dist-info/RECORD", "")
    Path("build").mkdir()
    return "peer-2.0-py3-none-any.whl"
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for folder in ("scripts", "requirements", "wheels"):
        (tmp_path / folder).mkdir()
    shutil.copy(ROOT / "scripts" / "environment", tmp_path / "scripts")
    wheel(tmp_path / "wheels", "deskhand_peer", needs="deskhand_unwanted")
    wheel(tmp_path / "wheels", "deskhand_unwanted")
    return tmp_path


def environment(checkout: Path, *names: str) -> subprocess.CompletedProcess[str]:
    settings = {
        "DESKHAND_VENV_DIR": str(checkout / "made"),
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(checkout / "wheels"),
    }
    return subprocess.run(
        ["bash", str(checkout / "scripts" / "environment"), *names],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **settings},
        stdin=subprocess.DEVNULL,
    )


def test_pinned_packages_are_installed_once_and_no_others(checkout: Path) -> None:
    (checkout / "requirements" / "peer.txt").write_text("# a peer\ndeskhand_peer==1.0\n")
    first = environment(checkout, "peer")
    assert first.returncode == 0, first.stderr
    folder = Path(first.stdout.strip())
    assert folder.parent == checkout / "made"
    say = "import deskhand_peer, importlib.util as u; print(deskhand_peer.NAME, u.find_spec('deskhand_unwanted'))"
    said = subprocess.run([folder / "bin" / "python", "-c", say], capture_output=True, text=True, check=True).stdout
    assert said == "deskhand_peer None\n"
    (folder / "mark").touch()
    (checkout / "requirements" / "peer.txt").write_text("# a peer, in other words\ndeskhand_peer==1.0\n")
    again = environment(checkout, "peer")
    assert (again.stdout, again.stderr) == (first.stdout, "")
    (folder / "complete").unlink()
    assert environment(checkout, "peer").stdout == first.stdout
    assert not (folder / "mark").exists(), "one that was never finished is made anew"


@pytest.mark.parametrize("installer", ["uv", "pip"])
def test_packages_are_compiled_also_where_python_writes_no_bytecode(
    checkout: Path, installer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    if installer == "uv":
        made = python_of("uv").parents[1]
        shutil.copy(ROOT / "requirements" / "uv.txt", checkout / "requirements")
        (checkout / "made").mkdir()
        (checkout / "made" / made.name).symlink_to(made)
    (checkout / "requirements" / "peer.txt").write_text("deskhand_peer==1.0\n")
    folder = Path(environment(checkout, "peer").stdout.strip())
    (about,) = folder.glob("lib/python3.*/site-packages/deskhand_peer-1.0.dist-info/INSTALLER")
    assert about.read_text().strip() == installer
    assert list(folder.glob("lib/python3.*/site-packages/__pycache__/deskhand_peer.*.pyc"))


@pytest.mark.parametrize("line", ["deskhand_peer", "deskhand_peer>=1", "-e .", "git+file:///x"])
def test_an_unpinned_line_is_refused(checkout: Path, line: str) -> None:
    (checkout / "requirements" / "loose.txt").write_text(f"# loose\n{line}\n")
    done = environment(checkout, "loose")
    assert done.returncode == 2
    assert f"2:{line}" in done.stderr
    assert "use name==version" in done.stderr


def test_an_unknown_name_is_answered_with_the_known_ones(checkout: Path) -> None:
    (checkout / "requirements" / "peer.txt").write_text("deskhand_peer==1.0\n")
    for names in ((), ("nobody",), ("peer", "peer", "peer")):
        done = environment(checkout, *names)
        assert done.returncode == 2
        assert done.stderr.startswith("error: usage: scripts/environment NAME [SOURCE], where NAME is one of: peer")


def test_a_source_tree_stands_in_for_the_released_package_and_the_others_stay(checkout: Path, tmp_path: Path) -> None:
    wheel(checkout / "wheels", "deskhand_other")
    (checkout / "requirements" / "peer.txt").write_text("deskhand_peer==1.0\ndeskhand_other==1.0\n")
    source = tmp_path / "source"
    (source / "peer").mkdir(parents=True)
    (source / "peer" / "__init__.py").write_text("VERSION = 2\n")
    backend = "build-backend = 'backend'\nbackend-path = ['.']\nrequires = []\n"
    (source / "pyproject.toml").write_text(f"[build-system]\n{backend}[project]\nname = 'peer'\nversion = '2.0'\n")
    (source / "backend.py").write_text(BACKEND)
    plain, made = environment(checkout, "peer"), environment(checkout, "peer", str(source))
    assert made.returncode == 0, made.stderr
    folder = Path(made.stdout.strip())
    assert folder != Path(plain.stdout.strip())
    say = "import peer, deskhand_other; from importlib.metadata import version; print(peer.VERSION, version('peer'))"
    program = [folder / "bin" / "python", "-c", say]
    assert subprocess.run(program, capture_output=True, text=True, check=True).stdout == "2 2.0\n"
    assert environment(checkout, "peer", str(source)).stdout == made.stdout
    (source / "peer" / "__init__.py").write_text("VERSION = 3\n")
    assert environment(checkout, "peer", str(source)).stdout != made.stdout
    assert not (source / "build").exists()


def test_what_is_no_source_tree_of_the_package_is_named(checkout: Path, tmp_path: Path) -> None:
    (checkout / "requirements" / "peer.txt").write_text("deskhand_peer==1.0\n")
    for name in (str(tmp_path), "absent"):
        done = environment(checkout, "peer", name)
        assert done.returncode == 2
        assert "not a source tree of peer" in done.stderr


def test_a_python_newer_than_the_packages_take_is_not_used(checkout: Path) -> None:
    (checkout / "requirements" / "peer.txt").write_text("# Python: up to 3.10\ndeskhand_peer==1.0\n")
    done = environment(checkout, "peer")
    assert done.returncode == 2
    assert "no Python 3.11 to 3.10 with venv found" in done.stderr


def test_a_missing_package_leaves_no_complete_environment(checkout: Path) -> None:
    (checkout / "requirements" / "peer.txt").write_text("deskhand_absent==1.0\n")
    done = environment(checkout, "peer")
    assert done.returncode == 2
    assert "cannot install" in done.stderr
    assert not list(checkout.glob("made/*/complete"))

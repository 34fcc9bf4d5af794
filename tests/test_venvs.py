"""Another environment's Python finds Deskhand and nothing that is installed beside it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deskhand.errors import ConfigError
from deskhand.venvs import install_command, newest_venv, package_path

ROOT = Path(__file__).parent.parent


def installation(folder: Path) -> Path:
    """A folder with Deskhand's package, as an installed wheel has it, and with another package."""
    packages = folder / "site-packages"
    ignored = shutil.ignore_patterns("__pycache__", "*.safetensors")
    shutil.copytree(ROOT / "deskhand", packages / "deskhand", ignore=ignored)
    (packages / "transformers.py").write_text("hidden = True\n")
    for name in ("scripts", "requirements"):
        shutil.copytree(ROOT / name, packages / "deskhand" / name)
    return packages


def said(packages: Path, program: str, folder: Path) -> str:
    rest = [path for path in sys.path if path.endswith("site-packages")]
    environment = {"PYTHONPATH": os.pathsep.join([str(packages), *rest]), "PATH": os.environ["PATH"]}
    environment["DESKHAND_VENV_DIR"] = str(folder / "venvs")
    words = [sys.executable, "-P", "-c", program]  # the current folder is a checkout
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_workers_of_an_installed_package_see_nothing_beside_it(tmp_path):
    packages = installation(tmp_path)
    program = (
        "import os; from pathlib import Path; "
        "from deskhand.integrations.areal.launcher import worker_environment as of; "
        "print(of(Path('/x/bin/python'), {'DESKHAND_VENV_DIR': os.environ['DESKHAND_VENV_DIR']})['PYTHONPATH'])"
    )
    shown = Path(said(packages, program, tmp_path))
    assert [path.name for path in shown.iterdir()] == ["deskhand"]
    look = (
        "import deskhand, deskhand.errors, importlib.util as u; print(deskhand.__file__, u.find_spec('transformers'))"
    )
    words = [sys.executable, "-P", "-S", "-c", look]
    done = subprocess.run(words, env={"PYTHONPATH": str(shown)}, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(shown / "deskhand" / "__init__.py"), "None"]


def test_a_machine_of_another_environment_sees_nothing_beside_it(tmp_path):
    """The process that starts OSWorld's machines runs in an environment with `desktop-env`."""
    packages = installation(tmp_path)
    program = f"""
import asyncio
from deskhand.errors import InfrastructureError
from deskhand.integrations.desktop_env.provider_pool import ProviderMachine
print_path = "import os; open({str(tmp_path / "path")!r}, 'w').write(os.environ['PYTHONPATH'])"
try:
    asyncio.run(ProviderMachine({sys.executable!r}, "x", {{}}, command=["-c", print_path]).fresh())
except InfrastructureError:
    pass
"""
    said(packages, program, tmp_path)
    assert [path.name for path in Path((tmp_path / "path").read_text()).iterdir()] == ["deskhand"]


def test_an_installed_package_brings_the_script_that_its_messages_name(tmp_path):
    packages = installation(tmp_path)
    command = said(packages, "from deskhand.venvs import install_command; print(install_command('areal'))", tmp_path)
    assert command == f"bash {packages}/deskhand/scripts/environment areal"
    done = subprocess.run(command.split()[:2], capture_output=True, text=True, check=False)
    assert "NAME is one of: areal areal-cuda" in done.stderr


def test_a_checkout_names_its_own_script_and_an_absent_environment_its_command(tmp_path):
    assert install_command("areal") == "scripts/environment areal"
    hint = "create one with scripts/environment areal or scripts/environment areal-cuda"
    with pytest.raises(ConfigError, match=hint):
        newest_venv("areal", {"DESKHAND_VENV_DIR": str(tmp_path)}, "areal-cuda")


def test_of_several_environments_the_newest_is_taken(tmp_path):
    for number, name in enumerate(("areal-aa", "areal-cuda-bb", "areal_source-cc", "areal-functions-dd")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "complete").touch()
        os.utime(tmp_path / name / "complete", (number, number))
    environment = {"DESKHAND_VENV_DIR": str(tmp_path)}
    assert newest_venv("areal", environment).name == "areal-aa"
    assert newest_venv("areal", environment, "areal-cuda").name == "areal-cuda-bb"


def test_two_processes_may_ask_for_the_path_at_once_and_a_read_only_folder_is_named(tmp_path):
    environment = {"DESKHAND_VENV_DIR": str(tmp_path / "venvs")}
    assert package_path(environment) == package_path(environment)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="set DESKHAND_VENV_DIR"):
        package_path({"DESKHAND_VENV_DIR": str(tmp_path / "file")})

"""Virtual environments for vLLM, SGLang, AReaL and OSWorld's evaluators, created by `scripts/environment`.

Also what Deskhand ships besides its modules, how its own packages are installed, and the path by which a Python of
another environment finds it. Used by whatever starts such a Python or names a command that installs something.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from deskhand.errors import ConfigError

PACKAGE = Path(__file__).resolve().parent
_EXTRAS = {
    "wandb": "wandb",
    "bitsandbytes": "quantized",
    "gymnasium": "gymnasium",
    "miniwob": "miniwob",
    **dict.fromkeys(("docx", "lxml", "openpyxl", "python_calamine"), "office"),
}
"""Optional parts of Deskhand by a package that they bring; all others are in `train`."""


def newest_venv(name: str, environment: Mapping[str, str], *alternatives: str) -> Path:
    """Return the newest environment created by `scripts/environment NAME`, or under an alternative name.

    Raises `ConfigError` if there is none.
    """
    folder, names = venv_dir(environment), (name, *alternatives)
    markers = [
        path
        for each in names
        for path in folder.glob(f"{each}-*/complete")
        if "-" not in path.parent.name[len(each) + 1 :]
    ]
    if not markers:
        raise ConfigError(
            f"{folder}: no environment for {name}; create one with {' or '.join(map(install_command, names))}"
        )
    return max(markers, key=lambda path: path.stat().st_mtime).parent


def venv_dir(environment: Mapping[str, str]) -> Path:
    """Return the folder of all environments."""
    home = environment.get("XDG_CACHE_HOME") or os.path.join(environment.get("HOME", "~"), ".cache")
    return Path(environment.get("DESKHAND_VENV_DIR") or Path(home, "deskhand", "environments"))


def is_checkout() -> bool:
    """Return whether Deskhand runs from a source tree, which has a Makefile, and not as an installed package."""
    return (PACKAGE.parent / "pyproject.toml").is_file()


def shipped_path(name: str) -> Path:
    """Return a folder or file of the checkout, or its copy in an installed package (`pyproject.toml` lists them)."""
    return (PACKAGE.parent if is_checkout() else PACKAGE) / name


def setup_command(extra: str = "train") -> str:
    """Return the command that installs Deskhand's own packages. `extra`: an optional part; empty for none."""
    pip = f"pip install 'deskhand[{extra}]'" if extra else "pip install deskhand"
    return f"run make setup, or {pip}" if is_checkout() else pip


def package_hint(package: str) -> str:
    """Return the command that installs a missing package, by the name under which it is imported."""
    return setup_command(_EXTRAS.get(package, "train"))


def install_script() -> Path:
    """Return the script that creates environments."""
    return shipped_path("scripts/environment")


def install_command(name: str) -> str:
    """Return the shell command that creates an environment."""
    return f"scripts/environment {name}" if is_checkout() else f"bash {install_script()} {name}"


def package_path(environment: Mapping[str, str]) -> Path:
    """Return a folder that contains Deskhand and nothing else, for PYTHONPATH of another environment's Python.

    The folder that contains the package does not serve: in an installation it holds all other packages, too, which
    would hide those of the other environment. Creates the folder and a link in it.
    """
    folder = venv_dir(environment) / f"path_{hashlib.sha256(str(PACKAGE).encode()).hexdigest()[:12]}"
    link = folder / PACKAGE.name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            link.symlink_to(PACKAGE)
    except OSError as error:
        raise ConfigError(
            f"{folder}: cannot be created ({error.strerror}); set DESKHAND_VENV_DIR to a writable folder"
        ) from None
    return folder

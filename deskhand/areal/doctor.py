"""What AReaL needs on this machine: `deskhand areal doctor [--fix]`. Invariant: looking changes nothing; mending is the same
however often it is done, and touches nothing but AReaL's own environment and the cache of compiled kernels.

Findings and their lines are those of `deskhand.doctor`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from deskhand.areal.launch import FORK_READY_S
from deskhand.areal.peer import SUPPORTED
from deskhand.areal.start import areal_python, surroundings_of
from deskhand.doctor import Finding
from deskhand.errors import ConfigError

LOOK_S = 180


def examine(environment: Mapping[str, str] | None = None) -> list[Finding]:
    """All findings about AReaL. Starts its Python once, which takes some seconds."""
    environment = os.environ if environment is None else environment
    try:
        python = areal_python(environment)
    except ConfigError as error:
        return [Finding("environment", False, str(error), "scripts/environment areal")]
    words = [str(python), "-m", "deskhand.areal.look"]
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, env=surroundings_of(python, environment), timeout=LOOK_S, check=True
        )
        said = json.loads(done.stdout.splitlines()[-1])
    except (subprocess.SubprocessError, OSError, ValueError, IndexError) as error:
        return [Finding("environment", False, f"{python} cannot be asked: {error}", "scripts/environment areal")]
    return list(_findings(said, python, environment))


def _findings(said: dict, python: Path, environment: Mapping[str, str]) -> Iterator[Finding]:
    yield Finding("areal", said["areal"] in SUPPORTED, f"{said['areal']} in {python}", f"install one of {', '.join(SUPPORTED)}")
    older = "pip install litellm==1.83.7 there: later ones lack a module that AReaL's proxy imports"
    yield Finding("proxy", not said["proxy"], said["proxy"] or f"litellm {said['litellm']}", older)
    slow = said["import_s"] > FORK_READY_S / 10
    mend = "put the environment on a local disk; AReaL waits for a forked worker's imports"
    yield Finding("imports", not slow, f"{said['import_s']:.0f} s", mend, needed=False)
    first = said["python3"] is not None and Path(said["python3"]).parent == python.parent
    yield Finding(
        "path", first, f"python3 is {said['python3']}", "deskhand train --trainer areal puts it first; nothing to do", needed=False
    )
    yield _pydrive(said)
    yield from _gpu(said, environment)


def _pydrive(said: dict) -> Finding:
    """OSWorld's evaluators import pydrive; its successor pydrive2 is what can be installed today."""
    if said["desktop-env"] is None:
        return Finding("pydrive", True, "OSWorld's own evaluators are not in this environment", needed=False)
    fine = said["pydrive"] is not None or said["pydrive2"] is None or _shim(said).is_file()
    return Finding(
        "pydrive", fine, "pydrive2 stands in for pydrive" if fine else "pydrive is not there, pydrive2 is", "--fix", False
    )


def _shim(said: dict) -> Path:
    folder = Path(said["executable"]).parents[1] / "lib"
    return next(folder.glob("python3.*")) / "site-packages" / "pydrive" / "__init__.py"


def _gpu(said: dict, environment: Mapping[str, str]) -> Iterator[Finding]:
    if not said["gpus"]:
        yield Finding("gpu", True, "none: experiments with deskhand.processor_server only", needed=False)
        return
    yield Finding("gpu", said["gpus"] > 1, f"{said['gpus']}", "AReaL samples on one and trains on another", needed=False)
    yield Finding("sglang", said["sglang"] is not None, str(said["sglang"]), "pip install 'areal[cuda]' there")
    yield Finding("flash-attn", said["flash-attn"] is not None, str(said["flash-attn"]), "pip install flash-attn there")
    compiler = environment.get("CXX") or shutil.which("g++") or shutil.which("c++")
    yield Finding(
        "c++20", compiler is not None and _compiles_cpp20(compiler), str(compiler), "install g++ 10 or newer, for SGLang's kernels"
    )


def _compiles_cpp20(compiler: str) -> bool:
    program = "#include <concepts>\ntemplate <std::integral T> T f(T x) { return x; }\nint main() { return f(0); }\n"
    words = [compiler, "-std=c++20", "-fsyntax-only", "-x", "c++", "-"]
    try:
        return subprocess.run(words, input=program, text=True, capture_output=True, timeout=60, check=False).returncode == 0
    except OSError:
        return False


def fix(root: Path, environment: Mapping[str, str] | None = None) -> list[str]:
    """Mend what can be mended; returns what was done, which is nothing the second time. `root`: a checkout with scripts/."""
    environment = os.environ if environment is None else environment
    done: list[str] = []
    try:
        python = areal_python(environment)
    except ConfigError:
        script = root / "scripts" / "environment"
        if not script.is_file():
            raise ConfigError(f"{script} is not there; run scripts/environment areal in a checkout of Deskhand") from None
        subprocess.run(["bash", str(script), "areal"], check=True, env=dict(environment), stdin=subprocess.DEVNULL)
        done.append("made the environment of AReaL")
        python = areal_python(environment)
    packages = next((python.parents[1] / "lib").glob("python3.*")) / "site-packages"
    shim = packages / "pydrive" / "__init__.py"
    if (packages / "pydrive2").is_dir() and not (packages / "pydrive").exists():
        shim.parent.mkdir()
        names = "auth", "drive", "files"
        shim.write_text('"""pydrive2 under the name that OSWorld imports."""\n')
        for name in names:
            (shim.parent / f"{name}.py").write_text(f"from pydrive2.{name} import *\n")
        done.append(f"pydrive2 answers to the name pydrive in {packages}")
    return done

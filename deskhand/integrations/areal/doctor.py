"""What AReaL needs on this machine: `deskhand areal doctor [--fix]`. Invariant: looking changes nothing; mending is the same
however often it is done, and touches nothing but AReaL's own environment.

Findings and their lines are those of `deskhand.doctor.check_machine`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from deskhand.doctor.check_machine import ProbeResult
from deskhand.errors import ConfigError
from deskhand.integrations.areal.installed_areal import SUPPORTED
from deskhand.integrations.areal.launcher import areal_python, worker_environment
from deskhand.integrations.areal.patches.worker_launch import FORK_READY_S

LOOK_S = 180
SHIM = '''"""pydrive2 under the name that OSWorld imports. `deskhand areal doctor --fix` wrote it."""

import sys
from importlib import import_module

for _name in ("auth", "drive", "files"):
    globals()[_name] = sys.modules[f"{__name__}.{_name}"] = import_module(f"pydrive2.{_name}")
'''
COMPILERS = (("g++", "gcc"), ("c++", "cc"))
VERSIONS = (12, 13, 11, 14, 10, 15)
"""Of GCC, those that CUDA's compiler takes first: it is stopped by one that is newer than itself."""


def check_areal(environment: Mapping[str, str] | None = None) -> list[ProbeResult]:
    """All findings about AReaL. Starts its Python once, which takes some seconds."""
    environment = os.environ if environment is None else environment
    try:
        python = areal_python(environment)
    except ConfigError as error:
        return [ProbeResult("environment", False, str(error), "scripts/environment areal")]
    words = [str(python), "-m", "deskhand.integrations.areal.environment_probe"]
    try:
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            env=worker_environment(python, environment),
            timeout=LOOK_S,
            check=True,
        )
        said = json.loads(done.stdout.splitlines()[-1])
    except (subprocess.SubprocessError, OSError, ValueError, IndexError) as error:
        return [ProbeResult("environment", False, f"{python} cannot be asked: {error}", "scripts/environment areal")]
    return list(_findings(said, python, environment))


def _findings(said: dict, python: Path, environment: Mapping[str, str]) -> Iterator[ProbeResult]:
    yield ProbeResult(
        "areal", said["areal"] in SUPPORTED, f"{said['areal']} in {python}", f"install one of {', '.join(SUPPORTED)}"
    )
    older = "pip install litellm==1.83.7 there: later ones lack a module that AReaL's proxy imports"
    yield ProbeResult("proxy", not said["proxy"], said["proxy"] or f"litellm {said['litellm']}", older)
    slow = said["import_s"] > FORK_READY_S / 10
    mend = "put the environment on a local disk; AReaL waits for a forked worker's imports"
    yield ProbeResult("imports", not slow, f"{said['import_s']:.0f} s", mend, needed=False)
    first = said["python3"] is not None and Path(said["python3"]).parent == python.parent
    yield ProbeResult(
        "path",
        first,
        f"python3 is {said['python3']}",
        "deskhand train --trainer areal puts it first; nothing to do",
        needed=False,
    )
    yield _pydrive(said)
    yield from _gpu(said, python, environment)


def _pydrive(said: dict) -> ProbeResult:
    """OSWorld's evaluators import pydrive; its successor pydrive2 is what can be installed today."""
    if said["desktop-env"] is None:
        return ProbeResult("pydrive", True, "OSWorld's own evaluators are not in this environment", needed=False)
    shim = _packages(Path(said["executable"])) / "pydrive" / "__init__.py"
    if said["pydrive"] is not None or (said["pydrive2"] is not None and shim.is_file()):
        return ProbeResult("pydrive", True, "it can be imported", needed=False)
    if said["pydrive2"] is None:
        return ProbeResult(
            "pydrive", False, "neither it nor pydrive2 is there", "pip install pydrive2 there, then --fix", False
        )
    return ProbeResult("pydrive", False, "it is not there, pydrive2 is", "deskhand areal doctor --fix", False)


def _packages(python: Path) -> Path:
    """site-packages of the environment of that Python."""
    return next((python.parents[1] / "lib").glob("python3.*")) / "site-packages"


def _gpu(said: dict, python: Path, environment: Mapping[str, str]) -> Iterator[ProbeResult]:
    if not said["gpus"]:
        yield ProbeResult("gpu", True, "none: experiments with deskhand.processor_server only", needed=False)
        return
    yield ProbeResult(
        "gpu", said["gpus"] > 1, f"{said['gpus']}", "AReaL samples on one and trains on another", needed=False
    )
    yield ProbeResult("sglang", said["sglang"] is not None, str(said["sglang"]), "pip install 'areal[cuda]' there")
    yield ProbeResult(
        "flash-attn", said["flash-attn"] is not None, str(said["flash-attn"]), "pip install flash-attn there"
    )
    compiler, named = _compiler(python, environment), environment.get("CXX")
    mend = "deskhand areal doctor --fix, or install g++-12, for SGLang's kernels"
    yield ProbeResult("c++20", compiler is not None, compiler or "the compiler on PATH does not take it", mend)
    if named:
        yield ProbeResult(
            "CXX", _compiles_cpp20(named), named, "it does not take C++20 and SGLang asks it first: unset CXX"
        )


def _compiler(python: Path, environment: Mapping[str, str]) -> str | None:
    """The compiler that a worker has on its PATH, where nvcc looks, if it takes C++20."""
    path = worker_environment(python, environment)["PATH"]
    found = next((each for each in (shutil.which(name, path=path) for name, _ in COMPILERS) if each), None)
    return found if found and _compiles_cpp20(found) else None


def _compiles_cpp20(compiler: str) -> bool:
    program = "#include <concepts>\n#include <source_location>\ntemplate <std::integral T> T f(T x) { return x; }\nint x = f(0);\n"
    words = [compiler, "-std=c++20", "-fsyntax-only", "-x", "c++", "-"]
    try:
        return (
            subprocess.run(words, input=program, text=True, capture_output=True, timeout=60, check=False).returncode
            == 0
        )
    except OSError:
        return False


def install_fixes(root: Path, environment: Mapping[str, str] | None = None) -> list[str]:
    """Mend what can be mended; returns what was done, which is nothing the second time. `root`: a checkout with scripts/."""
    environment = os.environ if environment is None else environment
    done: list[str] = []
    try:
        python = areal_python(environment)
    except ConfigError:
        script = root / "scripts" / "environment"
        if not script.is_file():
            raise ConfigError(
                f"{script} is not there; run scripts/environment areal in a checkout of Deskhand"
            ) from None
        subprocess.run(["bash", str(script), "areal"], check=True, env=dict(environment), stdin=subprocess.DEVNULL)
        done.append("made the environment of AReaL")
        python = areal_python(environment)
    done += _mend_pydrive(_packages(python))
    if (_packages(python) / "sglang").is_dir():
        done += _mend_compiler(python, environment)
    return done


def _mend_pydrive(packages: Path) -> Iterator[str]:
    """Let pydrive2 answer to the name pydrive, where it is and pydrive is not."""
    shim = packages / "pydrive" / "__init__.py"
    there = shim.read_text(encoding="utf-8") if shim.is_file() else None
    if not (packages / "pydrive2").is_dir() or there == SHIM or any(packages.glob("[pP]y[dD]rive-*.dist-info")):
        return
    shim.parent.mkdir(exist_ok=True)
    shim.write_text(SHIM, encoding="utf-8")
    yield f"pydrive2 answers to the name pydrive in {packages}"


def _mend_compiler(python: Path, environment: Mapping[str, str]) -> Iterator[str]:
    """Put a compiler that takes C++20 under the usual names into the environment's own programs, which come first in a worker's
    PATH. What is there and is no link stays."""
    if _compiler(python, environment) is not None:
        return
    path = environment.get("PATH", os.defpath)
    for version in VERSIONS:
        plus, plain = (shutil.which(f"{name}-{version}", path=path) for name in COMPILERS[0])
        if plus and plain and _compiles_cpp20(plus):
            break
    else:
        return
    links = {
        python.parent / name: target for names in COMPILERS for name, target in zip(names, (plus, plain), strict=True)
    }
    if taken := [str(link) for link in links if link.exists() and not link.is_symlink()]:
        raise ConfigError(
            f"{taken[0]} is a compiler of this environment's own and does not take C++20; remove or renew it"
        )
    for link, target in links.items():
        link.unlink(missing_ok=True)
        link.symlink_to(target)
    yield f"{plus} answers to the names of compilers in {python.parent}"

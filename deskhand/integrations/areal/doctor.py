"""Checks and fixes of AReaL's environment: `deskhand areal doctor [--fix]`.

Results are those of `doctor.check_machine`. Checks change nothing; fixes are idempotent and only touch AReaL's
environment.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

from deskhand.doctor.check_machine import ProbeResult
from deskhand.errors import ConfigError
from deskhand.integrations.areal.installed_areal import SUPPORTED, SUPPORTED_VERSIONS
from deskhand.integrations.areal.launcher import areal_python, worker_environment
from deskhand.integrations.areal.patches.worker_launch import FORK_READY_S
from deskhand.venvs import install_command, install_script

PROBE_TIMEOUT_S = 180
SHIM = '''"""pydrive2 under the name that OSWorld imports. `deskhand areal doctor --fix` wrote it."""

import sys
from importlib import import_module

for _name in ("auth", "drive", "files"):
    globals()[_name] = sys.modules[f"{__name__}.{_name}"] = import_module(f"pydrive2.{_name}")
'''
COMPILERS = (("g++", "gcc"), ("c++", "cc"))
GCC_VERSIONS = (12, 13, 11, 14, 10, 15)
"""Preferred GCC versions: CUDA's compiler rejects a GCC newer than itself."""


def check_areal(environment: Mapping[str, str] | None = None) -> list[ProbeResult]:
    """Return all results. Starts AReaL's Python once, which takes some seconds."""
    environment = os.environ if environment is None else environment
    try:
        python = areal_python(environment)
    except ConfigError as error:
        return [ProbeResult("environment", False, str(error), install_command("areal"))]
    words = [str(python), "-m", "deskhand.integrations.areal.environment_probe", *requirements()]
    try:
        env, timeout = worker_environment(python, environment), PROBE_TIMEOUT_S
        done = subprocess.run(words, capture_output=True, text=True, env=env, timeout=timeout, check=True)
        probe = json.loads(done.stdout.splitlines()[-1])
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or [f"exit code {error.returncode}"])[-1]
        return [ProbeResult("environment", False, f"{python}: {last}", install_command("areal"))]
    except (subprocess.SubprocessError, OSError, ValueError, IndexError) as error:
        return [ProbeResult("environment", False, f"{python}: probe failed: {error}", install_command("areal"))]
    return list(_findings(probe, python, environment))


def requirements() -> list[str]:
    """Return what Deskhand itself requires, without its extras; empty if it is not installed but only on the path."""
    try:
        return [each for each in metadata.requires("deskhand") or () if "extra ==" not in each]
    except metadata.PackageNotFoundError:
        return []


def _findings(probe: dict, python: Path, environment: Mapping[str, str]) -> Iterator[ProbeResult]:
    create = install_command("areal-cuda" if probe["gpus"] else "areal")
    there = f"{python} -m pip install"
    yield ProbeResult(
        "areal",
        bool(SUPPORTED.fullmatch(str(probe["areal"]))),
        f"{probe['areal']} in {python}",
        f"supported: {SUPPORTED_VERSIONS}; {create}",
    )
    for name, (number, folder) in probe["locations"].items():
        yield ProbeResult(name, True, f"{number} from {folder}", needed=False)
    yield ProbeResult("run", not probe["run"], probe["run"] or "everything that a run imports", create)
    unmet = probe["unmet"]
    yield ProbeResult(
        "bounds", not unmet, ", ".join(unmet) or "Deskhand's requirements are met", f"{there} {_quoted(unmet)}"
    )
    older = f"{there} litellm==1.83.7 (later ones lack a module that AReaL's proxy imports)"
    yield ProbeResult("proxy", not probe["proxy"], probe["proxy"] or f"litellm {probe['litellm']}", older)
    slow = probe["import_s"] > FORK_READY_S / 10
    hint = "put the environment on a local disk; AReaL waits for a forked worker's imports"
    yield ProbeResult("imports", not slow, f"{probe['import_s']:.0f} s", hint, needed=False)
    first = probe["python3"] is not None and Path(probe["python3"]).parent == python.parent
    hint = "deskhand train --trainer areal puts it first; nothing to do"
    yield ProbeResult("path", first, f"python3 is {probe['python3']}", hint, needed=False)
    yield _pydrive(probe)
    yield from _gpu(probe, python, environment)


def _quoted(unmet: list[str]) -> str:
    """Return requirements, without what is installed, as arguments of a shell command."""
    return " ".join(f"'{each.partition(' ')[0]}'" for each in unmet)


def _pydrive(probe: dict) -> ProbeResult:
    """OSWorld's evaluators import pydrive; only its successor pydrive2 can still be installed."""
    if probe["desktop-env"] is None:
        return ProbeResult("pydrive", True, "not needed: OSWorld's evaluators are not installed here", needed=False)
    shim = _packages(Path(probe["executable"])) / "pydrive" / "__init__.py"
    if probe["pydrive"] is not None or (probe["pydrive2"] is not None and shim.is_file()):
        return ProbeResult("pydrive", True, "importable", needed=False)
    if probe["pydrive2"] is None:
        hint = f"{probe['executable']} -m pip install pydrive2, then deskhand areal doctor --fix"
        return ProbeResult("pydrive", False, "neither pydrive nor pydrive2 is installed", hint, False)
    return ProbeResult("pydrive", False, "missing; pydrive2 is installed", "deskhand areal doctor --fix", False)


def _packages(python: Path) -> Path:
    return next((python.parents[1] / "lib").glob("python3.*")) / "site-packages"


def _gpu(probe: dict, python: Path, environment: Mapping[str, str]) -> Iterator[ProbeResult]:
    if not probe["gpus"]:
        yield ProbeResult("gpu", True, "none: only experiments with deskhand.cpu_inference_server", needed=False)
        return
    yield ProbeResult(
        "gpu", probe["gpus"] > 1, f"{probe['gpus']}", "AReaL needs one for sampling and one for training", needed=False
    )
    yield ProbeResult("sglang", probe["sglang"] is not None, str(probe["sglang"]), install_command("areal-cuda"))
    attention = probe["flash-attn"] or (probe["kernels"] and f"none; kernels {probe['kernels']} downloads one")
    hint = f"{python} -m pip install --no-build-isolation flash-attn (compiles; needs nvcc)"
    yield ProbeResult("flash-attn", bool(attention), str(attention), hint)
    compiler, named = _compiler(python, environment), environment.get("CXX")
    hint = "deskhand areal doctor --fix, or install g++-12, for SGLang's kernels"
    yield ProbeResult("c++20", compiler is not None, compiler or "the compiler on PATH does not support it", hint)
    if named:
        yield ProbeResult("CXX", _compiles_cpp20(named), named, "no C++20 support, and SGLang prefers it: unset CXX")


def _compiler(python: Path, environment: Mapping[str, str]) -> str | None:
    """Return the compiler that nvcc finds on a worker's PATH if it supports C++20."""
    path = worker_environment(python, environment)["PATH"]
    found = next((each for each in (shutil.which(name, path=path) for name, _ in COMPILERS) if each), None)
    return found if found and _compiles_cpp20(found) else None


def _compiles_cpp20(compiler: str) -> bool:
    program = (
        "#include <concepts>\n#include <source_location>\ntemplate <std::integral T> T f(T x) { return x; }\n"
        "int x = f(0);\n"
    )
    words = [compiler, "-std=c++20", "-fsyntax-only", "-x", "c++", "-"]
    try:
        done = subprocess.run(words, input=program, text=True, capture_output=True, timeout=60, check=False)
    except OSError:
        return False
    return done.returncode == 0


def install_fixes(environment: Mapping[str, str] | None = None) -> list[str]:
    """Apply the available fixes and return what was done, nothing the second time."""
    environment = os.environ if environment is None else environment
    done: list[str] = []
    try:
        python = areal_python(environment)
    except ConfigError:
        if environment.get("DESKHAND_AREAL_PYTHON"):
            raise
        words = ["bash", str(install_script()), "areal"]
        subprocess.run(words, check=True, env=dict(environment), stdin=subprocess.DEVNULL)
        done.append("created AReaL's environment")
        python = areal_python(environment)
    done += _fix_pydrive(_packages(python))
    if (_packages(python) / "sglang").is_dir():
        done += _fix_compiler(python, environment)
    return done


def _fix_pydrive(packages: Path) -> Iterator[str]:
    """Provide pydrive2 under the name pydrive, if only the former is installed."""
    shim = packages / "pydrive" / "__init__.py"
    there = shim.read_text(encoding="utf-8") if shim.is_file() else None
    if not (packages / "pydrive2").is_dir() or there == SHIM or any(packages.glob("[pP]y[dD]rive-*.dist-info")):
        return
    shim.parent.mkdir(exist_ok=True)
    shim.write_text(SHIM, encoding="utf-8")
    yield f"linked pydrive to pydrive2 in {packages}"


def _fix_compiler(python: Path, environment: Mapping[str, str]) -> Iterator[str]:
    """Link a C++20 compiler into the environment's bin directory, which comes first on a worker's PATH."""
    if _compiler(python, environment) is not None:
        return
    path = environment.get("PATH", os.defpath)
    for version in GCC_VERSIONS:
        plus, plain = (shutil.which(f"{name}-{version}", path=path) for name in COMPILERS[0])
        if plus and plain and _compiles_cpp20(plus):
            break
    else:
        return
    links = {
        python.parent / name: target for names in COMPILERS for name, target in zip(names, (plus, plain), strict=True)
    }
    if taken := [str(link) for link in links if link.exists() and not link.is_symlink()]:
        raise ConfigError(f"{taken[0]}: compiler without C++20 support; remove or update it")
    for link, target in links.items():
        link.unlink(missing_ok=True)
        link.symlink_to(target)
    yield f"linked {plus} as compiler in {python.parent}"

"""Rules that import-linter's layers cannot express: torch, the whole `Config`, short files, declared dependencies.

The layers themselves are a contract in pyproject.toml, which `make lint` checks.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
HEAVY = ("torch", "transformers", "peft", "accelerate")
MAY_IMPORT_TORCH = (
    "engines.hf",
    "models",
    "trainer",
    "recipes.tiny",
    "integrations.areal.tensors",
    "integrations.areal.patches",
)
LOADS_TORCH = (
    "api",
    *(f"recipes.{name}" for name in ("assemble", "train", "evaluate", "sft", "plan", "publish_probe", "samples")),
    "recipes.grounding",
    "recipes.run_measurements",
    "recipes.play_by_hand",
    "recipes.replay",
    "recipes.teacher",
    "recipes.training_loop",
)
"""Modules that import the trainer or an engine at the top, and so load torch when they are imported; no others may."""
PEERS = dict.fromkeys(("areal", "ray", "packaging"), "integrations.areal") | {
    name: f"integrations.{name}" for name in ("gymnasium", "verifiers")
}
"""Packages that live in environments of their own, and the one package that may import each where it is installed."""
OWN = ("deskhand", "benchmarks")
NEED_A_PEER = ("integrations.gymnasium", "integrations.verifiers")
"""Packages that define classes of a peer's, and so are imported only where it is installed."""


def name_of(path: Path) -> str:
    """`deskhand/actions/ops.py` is `actions.ops`; a package's `__init__.py` is the package; the root package is ''."""
    parts = path.relative_to(ROOT / "deskhand").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def modules() -> dict[str, Path]:
    return {name_of(path): path for path in sorted((ROOT / "deskhand").rglob("*.py"))}


def imported(path: Path) -> Iterator[str]:
    """Full names of the modules that a file imports, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            yield node.module or ""


def inside(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


@cache
def names_in(path: Path) -> frozenset[str]:
    """What other files can import from a file: everything that it binds, also under conditions."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    return frozenset(found)


def file_of(module: str) -> Path | None:
    path = ROOT / module.replace(".", "/")
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


def test_every_name_that_is_imported_exists() -> None:
    """Moving a class left seven benchmarks and tests behind; pyright checks the package alone."""
    wrong = []
    for folder in ("deskhand", "tests", "benchmarks", "examples"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if not isinstance(node, ast.ImportFrom) or (node.module or "").split(".")[0] not in OWN:
                    continue
                file = file_of(node.module or "")
                names = names_in(file) if file else frozenset[str]()
                wrong += [
                    f"{path.relative_to(ROOT)}:{node.lineno}: {node.module} has no {alias.name}"
                    for alias in node.names
                    if not {alias.name, "__getattr__"} & names and file_of(f"{node.module}.{alias.name}") is None
                ]
    assert not wrong, "\n".join(wrong)


def test_the_layers_contract_covers_every_package_and_holds() -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([linter, "--no-cache"], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout


def test_only_recipes_commands_and_the_api_see_the_whole_config() -> None:
    takers = [
        name
        for name, path in modules().items()
        if re.search(r"^ *from deskhand.* import (.*, )?Config\b", path.read_text(), re.MULTILINE)
    ]
    assert [name for name in takers if not inside(name, ("config", "recipes", "cli", "api", ""))] == []
    assert "recipes.assemble" in takers


def test_torch_is_imported_in_few_packages() -> None:
    wrong = [
        f"{module} imports {name}"
        for module, path in modules().items()
        for name in imported(path)
        if name.split(".")[0] in HEAVY and not inside(module, MAY_IMPORT_TORCH)
    ]
    assert not wrong, "\n".join(wrong)


def test_the_core_imports_without_torch() -> None:
    names = [
        f"deskhand.{name}".rstrip(".")
        for name in modules()
        if not inside(name, MAY_IMPORT_TORCH + LOADS_TORCH + NEED_A_PEER) and name != "__main__"
    ]
    load = f"import importlib, sys\nfor name in {names!r}: importlib.import_module(name)\n"
    program = f"{load}print([heavy for heavy in {HEAVY!r} if heavy in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_files_are_short() -> None:
    lengths = {
        path: len(path.read_text().splitlines())
        for folder in ("deskhand", "tests", "benchmarks", "examples")
        for path in (ROOT / folder).rglob("*.py")
    }
    assert not [f"{path.relative_to(ROOT)}: {lines} lines" for path, lines in lengths.items() if lines > 400]
    own = [lines for path, lines in lengths.items() if path.is_relative_to(ROOT / "deskhand")]
    assert sum(own) / len(own) < 160


def test_every_package_that_is_imported_is_declared_and_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = (name for extra in project["optional-dependencies"].values() for name in extra)
    declared = {requirement.split(">=")[0].lower() for requirement in [*project["dependencies"], *extras]}
    import_names = {
        "pillow": "PIL",
        "pyyaml": "yaml",
        "python-xlib": "Xlib",
        "python-docx": "docx",
        "python-pptx": "pptx",
        "pytest-xdist": "xdist",
    }
    allowed = {import_names.get(name, name.replace("-", "_")) for name in declared} | set(sys.stdlib_module_names)
    allowed |= {"deskhand"}
    wrong = {
        f"{module} imports {name}"
        for module, path in modules().items()
        for name in imported(path)
        if name.split(".")[0] not in allowed and not inside(module, (PEERS.get(name.split(".")[0], "no package"),))
    }
    helpers = {path.stem for folder in ("tests", "upstream") for path in (ROOT / folder).rglob("*.py")} | {
        "tests",
        "benchmarks",
        *PEERS,
        *("aiohttp", "omegaconf"),  # the probes run in AReaL's environment, which has both
        *("datasets", "trl"),  # of `scripts/environment trl`
        "requests",  # for which CUA-Gym's bundles, in `benchmarks/hub_bundles`, get a replacement
    }
    wrong |= {
        f"{path.relative_to(ROOT)} imports {name}"
        for folder in ("tests", "benchmarks")
        for path in (ROOT / folder).rglob("*.py")
        for name in imported(path)
        if name.split(".")[0] not in allowed | helpers
    }
    assert not wrong, "\n".join(sorted(wrong))
    used = {name.split(".")[0] for path in modules().values() for name in imported(path)}
    used.add("python_multipart")  # Starlette parses forms with it and does not require it
    core = {requirement.split(">=")[0].lower() for requirement in project["dependencies"]}
    assert {name for name in core if import_names.get(name, name.replace("-", "_")) not in used} == set()
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {line.split("==")[0].lower() for line in pins if not line.startswith("#")}
    assert declared <= pinned, f"add to constraints.txt: {sorted(declared - pinned)}"

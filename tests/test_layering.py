"""The import rule between rooms, read from the source: which room may use which, no circles, and a core without
torch."""

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
LEAVES = ("errors", "actions.ops", "deadlines")
MAY_USE: dict[str, tuple[str, ...]] = {
    "errors": (),
    "actions.ops": ("errors",),
    "deadlines": (),
    "engines.base": ("errors",),
    "actions": ("actions",),
    "tasks": ("tasks", "desktop.base"),
    "algorithms": ("algorithms",),
    "recorder": ("recorder", "engines.base"),
    "agents": ("agents", "actions", "asking", "desktop.base", "sections"),
    "desktop": ("desktop", "actions", "sections"),
    "bridge": ("bridge", "desktop", "actions"),
    "training": ("training", "recorder.graph", "engines.base", "models", "algorithms", "sections"),
}
"""What a room may import besides `LEAVES`. The longest name that fits a module counts.
A room that is not named here may use all but `cli` and `view`."""
FRONT = ("cli", "cli_models", "cli_parts", "view")
HEAVY = ("torch", "transformers", "peft", "accelerate")
MAY_BE_HEAVY = ("engines.hf", "models", "training", "areal.tensors", "areal.attention", "areal.positions")
JOINS_TRAINING = ("rollout.loop", "workshop", "demo", "evaluation", "warmup", "planning")
"""Modules that join the trainer with the rest; they may pull torch in when they are imported, and nothing else may."""
PEERS = {"areal": "areal"}
"""Packages that live in environments of their own, and the one room that may import each, where it is installed."""


def name_of(path: Path) -> str:
    """`deskhand/actions/ops.py` is `actions.ops`; a package's `__init__.py` is the package; the root package is ''."""
    parts = path.relative_to(ROOT / "deskhand").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def modules() -> dict[str, Path]:
    return {name_of(path): path for path in sorted((ROOT / "deskhand").rglob("*.py"))}


def imported(source: str, known: set[str]) -> Iterator[str]:
    """Full names of what `source` imports, wherever in the file; `from deskhand.a import b` is the module `a.b` if
    there is one."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            base = node.module or ""
            for alias in node.names:
                yield f"{base}.{alias.name}" if f"{base}.{alias.name}".removeprefix("deskhand.") in known else base


def own_imports(source: str, known: set[str]) -> set[str]:
    return {
        name.removeprefix("deskhand").removeprefix(".")
        for name in imported(source, known)
        if name.split(".")[0] == "deskhand"
    }


def inside(module: str, rooms: tuple[str, ...]) -> bool:
    return any(module == room or module.startswith(f"{room}.") for room in rooms)


def breaks_rule(module: str, target: str) -> bool:
    if inside(target, ("cli",)) and module not in ("cli", "__main__"):
        return True
    if inside(target, ("view",)) and not inside(module, FRONT):
        return True
    rooms = [room for room in MAY_USE if inside(module, (room,))]
    if not rooms or target == "" or target in LEAVES:
        return False
    return not inside(target, MAY_USE[max(rooms, key=len)])


def graph() -> dict[str, set[str]]:
    known = set(modules())
    return {name: own_imports(path.read_text(), known) - {name} for name, path in modules().items()}


def circle(edges: dict[str, set[str]]) -> list[str]:
    """One circle of imports as a list of modules, or nothing."""
    done: set[str] = set()

    def walk(name: str, trail: list[str]) -> list[str]:
        if name in trail:
            return trail[trail.index(name) :]
        if name in done:
            return []
        for target in sorted(edges.get(name, ())):
            if found := walk(target, [*trail, name]):
                return found
        done.add(name)
        return []

    for name in edges:
        if found := walk(name, []):
            return found
    return []


def test_every_room_imports_only_what_it_may() -> None:
    wrong = [
        f"{module} imports {target}"
        for module, targets in graph().items()
        for target in targets
        if breaks_rule(module, target)
    ]
    assert not wrong, "\n".join(wrong)


def test_the_rule_notices_what_it_forbids() -> None:
    known = set(modules())
    assert own_imports("def f():\n    from deskhand.actions import ops\n", known) == {"actions.ops"}
    assert own_imports("import deskhand.desktop.base as b", known) == {"desktop.base"}
    for module, target in [
        ("tasks.task", "desktop.pool"),
        ("recorder.graph", "engines.hf"),
        ("actions.ops", "actions.keys"),
        ("agents.context", "desktop.pool"),
        ("rollout.episode", "view.report"),
        ("demo", "cli"),
        ("algorithms.grpo", "recorder.graph"),
    ]:
        assert breaks_rule(module, target), f"{module} -> {target}"
    for module, target in [
        ("tasks.suites.basics.editor", "actions.ops"),
        ("rollout.loop", "training.trainer"),
        ("cli", "view.report"),
    ]:
        assert not breaks_rule(module, target), f"{module} -> {target}"


RECIPES = ("workshop", "evaluation", "demo", "warmup", "planning", "exporting")
"""Modules whose job is a whole command; the others take the sections that they need."""


def test_only_recipes_and_commands_are_handed_the_whole_config() -> None:
    allowed = ("config", "sections", "rejudging", "cli", "cli_parts", *RECIPES)
    takers = [
        name
        for name, path in modules().items()
        if re.search(r"^ *from deskhand.* import (.*, )?Config\b", path.read_text(), re.M)
    ]
    assert [name for name in takers if name not in allowed] == []
    assert "workshop" in takers


def test_there_are_no_circles() -> None:
    found = circle(graph())
    assert not found, " -> ".join([*found, found[0]])
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c"]


def test_only_few_places_know_torch() -> None:
    known = set(modules())
    wrong = [
        f"{module} imports {name}"
        for module, path in modules().items()
        for name in imported(path.read_text(), known)
        if name.split(".")[0] in HEAVY and not inside(module, MAY_BE_HEAVY)
    ]
    assert not wrong, "\n".join(wrong)


def test_the_core_imports_without_torch() -> None:
    names = [
        f"deskhand.{name}".rstrip(".")
        for name in modules()
        if not inside(name, MAY_BE_HEAVY + JOINS_TRAINING) and name != "__main__"
    ]
    load = f"import importlib, sys\nfor name in {names!r}: importlib.import_module(name)\n"
    program = f"{load}print([heavy for heavy in {HEAVY!r} if heavy in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_files_are_short() -> None:
    lengths = {
        path: len(path.read_text().splitlines())
        for folder in ("deskhand", "tests", "benchmarks")
        for path in (ROOT / folder).rglob("*.py")
    }
    assert not [f"{path.relative_to(ROOT)}: {lines} lines" for path, lines in lengths.items() if lines > 500]
    own = [
        lines
        for path, lines in lengths.items()
        if path.is_relative_to(ROOT / "deskhand") and path.name != "__init__.py"
    ]
    assert sum(own) / len(own) < 220


def test_every_package_that_is_imported_is_declared_and_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *(name for extra in project["optional-dependencies"].values() for name in extra)]
    declared = {requirement.split(">=")[0].lower() for requirement in asked}
    import_names = {
        "pillow": "PIL",
        "pyyaml": "yaml",
        "python-xlib": "Xlib",
        "python-docx": "docx",
        "pytest-xdist": "xdist",
    }
    allowed = (
        {import_names.get(name, name.replace("-", "_")) for name in declared}
        | set(sys.stdlib_module_names)
        | {"deskhand"}
    )
    wrong = {
        f"{module} imports {name}"
        for module, path in modules().items()
        for name in imported(path.read_text(), set(modules()))
        if name.split(".")[0] not in allowed and not inside(module, (PEERS.get(name.split(".")[0], "no room"),))
    }
    helpers = {path.stem for path in (ROOT / "tests").rglob("*.py")} | {"tests", "benchmarks", *PEERS}
    wrong |= {
        f"{path.relative_to(ROOT)} imports {name}"
        for folder in ("tests", "benchmarks")
        for path in (ROOT / folder).rglob("*.py")
        for name in imported(path.read_text(), set(modules()))
        if name.split(".")[0] not in allowed | helpers
    }
    assert not wrong, "\n".join(sorted(wrong))
    used = {name.split(".")[0] for path in modules().values() for name in imported(path.read_text(), set(modules()))}
    used.add("python_multipart")  # by Starlette, which reads forms with it and does not ask for it
    core = {requirement.split(">=")[0].lower() for requirement in project["dependencies"]}
    assert {name for name in core if import_names.get(name, name.replace("-", "_")) not in used} == set()
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {line.split("==")[0].lower() for line in pins if not line.startswith("#")}
    assert declared <= pinned, f"add to constraints.txt: {sorted(declared - pinned)}"

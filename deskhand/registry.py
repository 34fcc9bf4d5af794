"""Names and import paths of everything that can be plugged in.

A reference is the name of a built-in or registered part, the name of an entry point (group `deskhand.<kind>s`),
`module:attr`, or `file.py:attr`. The same string works in a config, on the command line, and in Python. Built-in parts
are import paths, so that `check` needs no import.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import sys
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from deskhand.errors import ConfigError

Kind = Literal["action_format", "agent", "algorithm", "desktop", "engine", "reward", "suite", "task_family"]
FORMATS, ALGORITHMS = "deskhand.actions.formats", "deskhand.algorithms"


@dataclass(frozen=True)
class _Part:
    key: str
    """Config key that takes a reference; errors name it."""
    builtin: dict[str, str]


_PARTS: dict[Kind, _Part] = {
    "agent": _Part("agent.class", {"desktop": "deskhand.agents.desktop_agent:DesktopAgent"}),
    "action_format": _Part(
        "agent.action_format",
        {
            name: f"{FORMATS}.{name}:FORMAT"
            for name in ("deskhand_json", "openadapt_json", "openadapt_text", "pyautogui", "computer_13")
        }
        | {f"anthropic_{day}": f"{FORMATS}.anthropic_computer_use:V{day}" for day in (20241022, 20250124, 20251124)}
        | {
            "openai_preview": f"{FORMATS}.openai_computer_use:PREVIEW",
            "openai_ga": f"{FORMATS}.openai_computer_use:GA",
            "qwen25_vl": f"{FORMATS}.qwen:QWEN25",
            "qwen3_vl": f"{FORMATS}.qwen:QWEN3",
            "gemini": f"{FORMATS}.gemini_computer_use:FORMAT",
            "uitars_1_0": f"{FORMATS}.uitars:V1_0",
            "uitars_1_5": f"{FORMATS}.uitars:V1_5",
            "uitars_point": f"{FORMATS}.uitars:POINT",
            "opencua_relative": f"{FORMATS}.opencua:RELATIVE",
            "opencua_qwen25": f"{FORMATS}.opencua:QWEN25",
            "waa_navi": f"{FORMATS}.waa_navi:FORMAT",
            "qwen35": f"{FORMATS}.qwen:QWEN35",
            "evocua": f"{FORMATS}.qwen:EVOCUA",
            "gui_owl": f"{FORMATS}.gui_owl:FORMAT",
            "fara": f"{FORMATS}.fara:FORMAT",
            "mai_ui": f"{FORMATS}.mai_ui:FORMAT",
            "holo1_5": f"{FORMATS}.holo:HOLO1_5",
            "holo": f"{FORMATS}.holo:HOLO",
            "glm_v": f"{FORMATS}.glm_v:FORMAT",
            "scalecua": f"{FORMATS}.scalecua:FORMAT",
            "kimi": f"{FORMATS}.opencua:KIMI",
        },
    ),
    "algorithm": _Part(
        "trainer.algorithm",
        {name: f"{ALGORITHMS}.{name}:{name}" for name in ("grpo", "dr_grpo", "gspo", "dapo", "cispo", "rloo", "gigpo")}
        | {
            f"reinforce_plus_plus{more}": f"{ALGORITHMS}.reinforce_plus_plus:reinforce_plus_plus{more}"
            for more in ("", "_baseline")
        }
        | {"ppo": f"{ALGORITHMS}.ppo:PPO"},
    ),
    "desktop": _Part(
        "desktop.backend",
        {"local": "deskhand.desktop.factory:open_local_pool"}
        | dict.fromkeys(("server", "sandbox", "osworld", "waa"), "deskhand.desktop.factory:open_remote_pool"),
    ),
    "engine": _Part(
        "engine.backend",
        {
            "hf": "deskhand.recipes.engine_factory:build_hf",
            "vllm": "deskhand.recipes.engine_factory:build_vllm",
            "sglang": "deskhand.recipes.engine_factory:build_sglang",
            "openai": "deskhand.recipes.engine_factory:build_endpoint",
        },
    ),
    "reward": _Part("reward", {}),
    "suite": _Part(
        "suite.name",
        {
            "basics": "deskhand.tasks.suites.family_registry:DEFAULT",
            "miniwob": "deskhand.tasks.suites.miniwob:task_names",
            "web": "deskhand.tasks.suites.web:FAMILIES",
        },
    ),
    "task_family": _Part("suite.families", {}),
}
_registered: dict[tuple[Kind, str], Any] = {}
_objects: dict[tuple[Kind, str], Any] = {}
"""Objects that were passed in Python, by the reference under which a config names them."""


def register(kind: Kind, name: str, value: Any = None) -> Any:
    """Give a part a name in this process; without `value`, return a decorator. Raises `ConfigError` if it is taken.

    Examples:
        >>> @register("engine", "mine")
        ... async def build_mine(request): ...
    """
    if value is None:
        return lambda value: register(kind, name, value)
    if name in _PARTS[kind].builtin or ":" in name:
        raise ConfigError(f"{_label(kind)} {name!r}: the name is {'built in' if ':' not in name else 'an import path'}")
    _registered[kind, name] = value
    return value


def names(kind: Kind) -> tuple[str, ...]:
    """Names of the built-in parts of a kind, then of registered ones and entry points."""
    registered = (name for of, name in _registered if of == kind)
    return tuple(dict.fromkeys([*_PARTS[kind].builtin, *registered, *_entry_points(kind)]))


def is_builtin(kind: Kind, ref: str) -> bool:
    return ref in _PARTS[kind].builtin


def check(kind: Kind, ref: str) -> str:
    """Return `ref`. Raises `ValueError` if it is neither a known name nor an import path; imports nothing."""
    if ":" not in ref and ref not in names(kind):
        raise ValueError(_unknown(kind, ref))
    return ref


def resolve(kind: Kind, ref: str, *, key: str = "") -> Any:
    """The part that `ref` names. Raises `ConfigError` with the key, the reference and the import that failed."""
    key, part = key or _PARTS[kind].key, _PARTS[kind]
    for found in (_objects, _registered):
        if (kind, ref) in found:
            return found[kind, ref]
    if ref in part.builtin:
        return import_path(part.builtin[ref], key)
    if ":" in ref:
        return import_path(ref, key)
    entry = _entry_points(kind).get(ref)
    if entry is None:
        raise ConfigError(f"{key}: {_unknown(kind, ref)}")
    return import_path(entry.value, key)


def reference(kind: Kind, value: Any) -> str:
    """The string by which a config names `value`, which stays known to this process under it."""
    if isinstance(value, str):
        if (kind, value) not in _registered:
            return value
        value = _registered[kind, value]
    named = next((name for (of, name), found in _registered.items() if of == kind and found is value), None)
    ref = _origin(value) or named or f"object:{getattr(value, '__name__', type(value).__name__)}"
    _objects[kind, ref] = value
    return ref


def import_path(ref: str, key: str) -> Any:
    """The object at `module:attr` or `file.py:attr`. Raises `ConfigError`."""
    where, _, attribute = ref.rpartition(":")
    if where == "object":
        raise ConfigError(f"{key}: {attribute} was passed as a Python object; pass it again, or name it by import path")
    failed = f"{key}: cannot import {ref}"
    if not where or not attribute:
        raise ConfigError(f"{failed}: write it as module:attr or file.py:attr")
    module = import_file(Path(where), failed) if where.endswith(".py") else _import_module(where, failed)
    value: Any = module
    for name in attribute.split("."):
        if not hasattr(value, name):
            close = difflib.get_close_matches(name, [each for each in vars(value) if not each.startswith("_")], n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            owner = "module" if value is module else "object"
            raise ConfigError(f"{failed}: {owner} {where} has no attribute {name}{hint}")
        value = getattr(value, name)
    return value


def import_file(path: Path, failed: str) -> ModuleType:
    """Run a Python file once as a module. Raises `ConfigError` that begins with `failed`."""
    file = path.expanduser().resolve()
    main = sys.modules.get("__main__")
    if main is not None and getattr(main, "__file__", None) and Path(str(main.__file__)).resolve() == file:
        return main
    name = f"deskhand_file_{file.stem}_{abs(hash(str(file))):x}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None or not file.is_file():
        siblings = [each.name for each in file.parent.glob("*.py")] if file.parent.is_dir() else []
        close = difflib.get_close_matches(file.name, siblings, n=1)
        raise ConfigError(f"{failed}: no file {path}{f'; did you mean {path.with_name(close[0])}?' if close else ''}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    _search_also(file.parent)
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if not isinstance(error, Exception) or isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{failed}: {path} raised {type(error).__name__}: {' '.join(str(error).split())}") from error
    return module


def _import_module(name: str, failed: str) -> ModuleType:
    _search_also(Path.cwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ConfigError(f"{failed}: no module named {error.name}") from error
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"{failed}: {name} raised {type(error).__name__}: {' '.join(str(error).split())}") from error


def _search_also(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def _origin(value: Any) -> str | None:
    """Import path of a function or class at the top of a module; of a script that runs, its file."""
    inner = getattr(value, "__wrapped__", value)
    name, module = getattr(inner, "__qualname__", ""), sys.modules.get(getattr(inner, "__module__", ""))
    if not name or "<" in name or module is None or isinstance(value, ModuleType):
        return None
    found: Any = module
    for each in name.split("."):
        found = getattr(found, each, None)
    if found is not value:
        return None
    if module.__name__ == "__main__" or module.__name__.startswith("deskhand_file_"):
        file = inspect.getsourcefile(module)
        return f"{Path(file).resolve()}:{name}" if file else None
    return f"{module.__name__}:{name}"


@cache
def _entry_points(kind: Kind) -> dict[str, EntryPoint]:
    group = f"deskhand.{'task_families' if kind == 'task_family' else f'{kind}s'}"
    return {entry.name: entry for entry in entry_points(group=group)}


def _label(kind: Kind) -> str:
    return kind.replace("_", " ")


def _unknown(kind: Kind, ref: str) -> str:
    known = names(kind)
    near = difflib.get_close_matches(ref, known, n=3, cutoff=0.5)
    hint = f"known: {', '.join(known)}" if known else "write it as module:attr or file.py:attr"
    if near:
        hint = f"did you mean {' or '.join(map(repr, near))}?"
    return f"unknown {_label(kind)} {ref!r}; {hint}"

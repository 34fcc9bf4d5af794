"""CUA-Gym's task bundles, unchanged: folders with `task.json`, a set-up program and `reward.py`.

Start with `load_folder`, then `requirements_of`; `tasks.suites.web.hub_task` makes the tasks. Programs name an
application of CUA-Gym-Hub by a placeholder (`__CUA_GYM_GMAIL_URL__`) or by the address of the release's own servers.
Built applications are read from `hub/websites/` in the folder of the tasks.

Bundles of schema version 2 also have `nemo_task.json`, the row for NeMo-Gym. Its programs are played: their `reward.py`
is for CUA-Gym's own validation. They name the session by `__CUA_GYM_SID__`.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

from deskhand.tasks.formats.cuagym_programs import DOMAIN
from deskhand.tasks.formats.located_yaml import Problem, TaskFileError, load_json
from deskhand.tasks.formats.osworld import Corpus, Loaded
from deskhand.tasks.formats.requirements import Requirement

SUITE = "cuagym"
TASK_FILE, REWARD, SETUP = "task.json", "reward.py", "initial_setup"
NEMO_FILE = "nemo_task.json"
SESSION = "deskhand"
"""Session of tasks whose programs do not choose one."""
WEBSITES = Path("hub", "websites")
_PLACEHOLDER = re.compile(r"__CUA_GYM_([A-Z0-9_]+?)(?:_MOCK)?_(URL|HOST)__")
_RELEASED = re.compile(r"(https?://)?cua-gym-([a-z0-9-]+)\.xlang\.ai")
_REPLACED = frozenset({"requests"})
"""Libraries that `cuagym_programs` stands in for."""


@dataclass(frozen=True)
class CuaGymTask:
    """A bundle. Programs are source text; an empty one is missing."""

    id: str
    instruction: str
    app_type: str
    """Application or group of applications, such as "gmail_mock" or "libreoffice_calc"."""
    setup_name: str
    """File name of the set-up, which is a Python or shell program or a document; empty: none."""
    setup: str
    reward: str
    reward_name: str = REWARD
    """File that has the reward program."""

    @property
    def apps(self) -> tuple[str, ...]:
        """Names of the hub applications in the programs, such as "google-calendar"."""
        text = f"{self.setup}\n{self.reward}"
        named = [_app_name(found[1]) for found in _PLACEHOLDER.finditer(text)]
        return tuple(dict.fromkeys([*named, *(found[2] for found in _RELEASED.finditer(text))]))

    def programs(self, port: int) -> tuple[str, str]:
        """Return set-up and reward with the addresses that the applications have on a desktop."""
        setup, reward = (_with_addresses(text, port) for text in (self.setup, self.reward))
        return setup, reward


def load(folder: Path) -> Loaded[CuaGymTask]:
    """Load a bundle. Raises `TaskFileError` if `task.json` is not a JSON object with an instruction, or if
    `nemo_task.json` lacks a program."""
    if (folder / NEMO_FILE).is_file():
        return Loaded(folder, _nemo_task(folder), ())
    path = folder / TASK_FILE
    value = load_json(path).value
    instruction = value.get("instruction") if isinstance(value, dict) else None
    if not isinstance(instruction, str) or not instruction.strip():
        raise TaskFileError([Problem(str(path), "instruction", "is missing or empty")])
    setups = [each for each in sorted(folder.iterdir()) if each.stem == SETUP]
    setup = next(iter(setups), None)
    task = CuaGymTask(
        str(value.get("id", folder.name)),
        instruction,
        str(value.get("app_type") or "other"),
        setup.name if setup else "",
        _text(setup) if setup and setup.suffix in (".py", ".sh") else "",
        _text(folder / REWARD),
    )
    return Loaded(folder, task, ())


def _nemo_task(folder: Path) -> CuaGymTask:
    """Return the task of a NeMo-Gym row. Without a set-up program the application starts with its own data."""
    path = folder / NEMO_FILE
    row = load_json(path).value
    payload = row.get("task_payload") if isinstance(row, dict) else None
    programs = payload.get("cuagym") if isinstance(payload, dict) else None
    if not isinstance(payload, dict) or not isinstance(programs, dict):
        raise TaskFileError([Problem(str(path), "task_payload.cuagym", "is missing or not an object")])
    instruction, reward = payload.get("intent"), programs.get("eval_reward_code")
    setup, app = programs.get("initial_setup") or "", programs.get("app_dir")
    needed = {"intent": instruction, "cuagym.eval_reward_code": reward, "cuagym.app_dir": app}
    for key, value in {**needed, "cuagym.initial_setup": setup or "none"}.items():
        if not isinstance(value, str) or not value.strip():
            raise TaskFileError([Problem(str(path), f"task_payload.{key}", "is missing, empty or not a string")])
    name = str(payload.get("task_id", folder.name))
    return CuaGymTask(name, str(instruction), str(app), f"{SETUP}.py", str(setup), str(reward), NEMO_FILE)


def load_folder(folder: Path) -> Corpus[CuaGymTask]:
    """Load the bundles of a folder. Raises `TaskFileError` if there are none."""
    found, unreadable = [], []
    for each in task_folders(folder):
        try:
            found.append(load(each))
        except TaskFileError as error:
            unreadable.append((each, tuple(error.problems)))
    return Corpus(tuple(found), tuple(unreadable))


def task_folders(folder: Path) -> list[Path]:
    """Return the sorted bundles. Raises `TaskFileError` if there are none."""
    found = sorted(path.parent for path in folder.glob(f"*/{TASK_FILE}"))
    if not found:
        raise TaskFileError([Problem(str(folder), "", f"no task bundles (*/{TASK_FILE}) in this folder")])
    return found


def built_apps(folder: Path) -> dict[str, Path]:
    """Return what the builds of the hub applications in a folder of tasks wrote, by application."""
    found = sorted((folder / WEBSITES).glob("*_mock/dist/index.html"))
    return {_app_name(page.parents[1].name.removesuffix("_mock")): page.parent for page in found}


def requirements_of(task: CuaGymTask, built: dict[str, Path]) -> list[Requirement]:
    """Return why a task cannot run on this machine; nothing if it can."""
    if not task.reward.strip():
        return [Requirement("broken", f"{task.reward_name} is empty")]
    if task.setup_name != f"{SETUP}.py" or not task.apps:
        return [Requirement("desktop", task.setup_name or "no set-up program")]
    found = [Requirement("application", f"hub application {app}") for app in task.apps if app not in built]
    if "REWARD:" not in task.reward:
        found.append(Requirement("broken", f"{task.reward_name} never prints REWARD:"))
    if "/upload" in task.setup:
        found.append(Requirement("upload", task.setup_name))
    for name, source in ((task.setup_name, task.setup), (task.reward_name, task.reward)):
        try:
            missing = [library for library in _imported(source) if not _is_installed(library)]
        except (SyntaxError, ValueError) as error:
            found.append(Requirement("broken", f"{name}: {error}"))
        else:
            found += [Requirement("library", library) for library in missing]
    return found


def _imported(source: str) -> list[str]:
    """Return the top-level modules that a program imports. Raises `SyntaxError` or `ValueError`."""
    names: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.append(node.module)
    return list(dict.fromkeys(name.split(".")[0] for name in names))


def _is_installed(library: str) -> bool:
    return library in _REPLACED or importlib.util.find_spec(library) is not None


def _app_name(text: str) -> str:
    """Return the name of an application as a host name has it."""
    return text.lower().replace("_", "-")


def _with_addresses(source: str, port: int) -> str:
    def named(app: str, *, is_url: bool) -> str:
        return f"{'http://' if is_url else ''}{app}{DOMAIN}:{port}"

    source = source.replace("__CUA_GYM_SID__", SESSION)
    source = _PLACEHOLDER.sub(lambda found: named(_app_name(found[1]), is_url=found[2] == "URL"), source)
    return _RELEASED.sub(lambda found: named(found[2], is_url=bool(found[1])), source)


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""

"""Windows Agent Arena's task files, unchanged, and the `Task` that the benchmark's server sets up and judges.

Start with `load` or `load_folder`, then `task_of`. The format is OSWorld's with Windows setup steps and getters.
Infeasible tasks are rejected, because the server does not receive the agent's answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from deskhand.desktop.base import StageableDesktop
from deskhand.errors import ConfigError
from deskhand.tasks.formats import osworld
from deskhand.tasks.formats.located_yaml import LocatedDocument, canonical_json, load_json
from deskhand.tasks.formats.osworld import Corpus, JsonTask, Loaded, Vocabulary
from deskhand.tasks.outcome import Finding
from deskhand.tasks.task import CheckResult, Task

SUITE = "waa"
DEFAULT_MAX_STEPS = 15
CHECK_TIMEOUT_S = 300.0
"""The evaluate server runs postconfig steps, and a lost reply is requested again."""

FOLDERS = (
    "src/win-arena-container/client/evaluation_examples_windows/examples",
    "evaluation_examples_windows/examples",
    "examples",
)
_ID, _DRIVE = re.compile(rb'"id":"[^"]*-wos', re.IGNORECASE), re.compile(rb"\b[A-Z]:\\\\")


class WindowsTask(JsonTask):
    """A task whose `related_apps` are Windows programs."""


def load(path: Path) -> Loaded[WindowsTask]:
    """Load a task file. Raises `TaskFileError` if it is not a JSON object with the keys of a task.

    Names of steps, getters and metrics that are not known here are notes: the benchmark's server sets up and judges.
    """
    return osworld.load_document(path, load_json(path), WindowsTask, Vocabulary(is_open=True))


def load_folder(folder: Path) -> Corpus[WindowsTask]:
    """Load the task files of a checkout or any folder. Raises `TaskFileError` if there are none."""
    return osworld.load_all(folder, FOLDERS, load)


def is_windows(document: LocatedDocument) -> bool:
    """Return whether a task file is for Windows: by its id, or by a drive letter without OSWorld's key `proxy`."""
    text = canonical_json(document.value)
    return bool(_ID.search(text)) or (b'"proxy":' not in text and bool(_DRIVE.search(text)))


class TaskEvaluator(Protocol):
    """Sets up and judges a task (`desktop.remote.waa_server.WaaEvaluatorClient`)."""

    async def setup(self, config: list[dict[str, Any]]) -> None: ...

    async def evaluate(self, task: dict[str, Any]) -> tuple[float, str]: ...


EvaluatorFactory = Callable[[StageableDesktop], TaskEvaluator]
"""Returns the evaluator of a desktop's machine."""


def task_of(
    loaded: Loaded[WindowsTask],
    evaluator: EvaluatorFactory,
    width: int,
    height: int,
    max_steps: int = DEFAULT_MAX_STEPS,
) -> Task:
    """Return the task of a loaded file, for a screen size. Raises `ConfigError` if the task is infeasible.

    It is named after its file, as in the benchmark's lists: two files have the same `id`.
    """
    if loaded.task.infeasible:
        raise ConfigError(f"{loaded.path}: infeasible tasks are not supported; exclude it from the suite")
    document = osworld.dump(loaded.task)
    judged = {key: value for key, value in document["evaluator"].items() if key != "postconfig"}
    at_start = document | {"evaluator": judged}

    async def setup(desktop: StageableDesktop) -> None:
        await evaluator(desktop).setup(document.get("config", []))

    async def evaluate(desktop: StageableDesktop, asked: dict[str, Any]) -> CheckResult:
        score, why = await evaluator(desktop).evaluate(asked)
        func = document["evaluator"]["func"]
        clause = " ".join(["the evaluate server:", *([func] if isinstance(func, str) else func)])
        expected = str(document["evaluator"].get("expected", ""))
        return CheckResult(score, why, untrusted_source=True, findings=(Finding(clause, score, why, expected),))

    async def check(desktop: StageableDesktop) -> CheckResult:
        return await evaluate(desktop, document)

    async def start_check(desktop: StageableDesktop) -> CheckResult:
        """Without postconfig steps, which save documents and close programs."""
        return await evaluate(desktop, at_start)

    return Task(
        id=f"{SUITE}/{loaded.path.stem}/0",
        family=loaded.path.stem,
        suite=SUITE,
        instruction=loaded.task.instruction,
        width=width,
        height=height,
        max_steps=max_steps,
        setup=setup,
        check=check,
        start_check=start_check,
        check_timeout_s=CHECK_TIMEOUT_S,
        difficulty="medium",
        oracle_unavailable="Windows Agent Arena files have no oracle",
    )

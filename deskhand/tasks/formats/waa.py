"""Windows Agent Arena's task files, unchanged. Invariant: as of `osworld`: what loads is dumped as the same JSON value.

The format is OSWorld's with set-up steps and getters of Windows' own; running a task needs that benchmark's server.
"""

from __future__ import annotations

import re
from pathlib import Path

from deskhand.tasks.formats import osworld
from deskhand.tasks.formats.located_yaml import LocatedDocument, canonical, load_json
from deskhand.tasks.formats.osworld import Corpus, JsonTask, Loaded

FOLDERS = (
    "src/win-arena-container/client/evaluation_examples_windows/examples",
    "evaluation_examples_windows/examples",
    "examples",
)
_ID, _DRIVE = re.compile(rb'"id":"[^"]*-wos', re.IGNORECASE), re.compile(rb"\b[A-Z]:\\\\")


class WindowsTask(JsonTask):
    """`related_apps` of these tasks name Windows programs."""


def load(path: Path) -> Loaded[WindowsTask]:
    """Load one task file. Raises `TaskFileError` when it is no JSON or a value is of the wrong kind."""
    return osworld.loaded(path, load_json(path), WindowsTask, frozenset(), frozenset())


def load_folder(folder: Path) -> Corpus[WindowsTask]:
    """All task files of a checkout or of any folder with task files in it. Raises `TaskFileError` when there is none."""
    return osworld.load_all(folder, FOLDERS, load)


def is_windows(document: LocatedDocument) -> bool:
    """Whether a task file is for Windows: its id is one of that benchmark's, or it names a path with a drive and has none of the
    keys that only OSWorld has."""
    text = canonical(document.value)
    return bool(_ID.search(text)) or (b'"proxy":' not in text and bool(_DRIVE.search(text)))

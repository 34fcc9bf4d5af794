"""Windows Agent Arena's task files, unchanged.

Start with `load` or `load_folder`. The format is OSWorld's with Windows setup steps and getters; running a task needs
the benchmark's server.
"""

from __future__ import annotations

import re
from pathlib import Path

from deskhand.tasks.formats import osworld
from deskhand.tasks.formats.located_yaml import LocatedDocument, canonical_json, load_json
from deskhand.tasks.formats.osworld import Corpus, JsonTask, Loaded

FOLDERS = (
    "src/win-arena-container/client/evaluation_examples_windows/examples",
    "evaluation_examples_windows/examples",
    "examples",
)
_ID, _DRIVE = re.compile(rb'"id":"[^"]*-wos', re.IGNORECASE), re.compile(rb"\b[A-Z]:\\\\")


class WindowsTask(JsonTask):
    """A task whose `related_apps` are Windows programs."""


def load(path: Path) -> Loaded[WindowsTask]:
    """Load a task file. Raises `TaskFileError` if it is not JSON or a value has the wrong type."""
    return osworld.load_document(path, load_json(path), WindowsTask, frozenset(), frozenset())


def load_folder(folder: Path) -> Corpus[WindowsTask]:
    """Load the task files of a checkout or any folder. Raises `TaskFileError` if there are none."""
    return osworld.load_all(folder, FOLDERS, load)


def is_windows(document: LocatedDocument) -> bool:
    """Return whether a task file is for Windows: by its id, or by a drive letter without OSWorld's key `proxy`."""
    text = canonical_json(document.value)
    return bool(_ID.search(text)) or (b'"proxy":' not in text and bool(_DRIVE.search(text)))

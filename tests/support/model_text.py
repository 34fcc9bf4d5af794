"""Everything that models read, as texts by stable names, and the digests that it must have.

The names say what a text is and never where the code is that makes it. Digests are in `tests/model_text/PART.json`.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import model_text_formats as formats
import model_text_talk as talk

from deskhand.tasks.suites import miniwob

FOLDER = Path(__file__).parents[1] / "model_text"
WRITE, DUMP = "MODEL_TEXT_WRITE", "MODEL_TEXT_DUMP"
DIGITS = 10
SHOWN = 25
PARTS: dict[str, Callable[[], Any]] = {
    "formats": formats.format_texts,
    "tool_formats": formats.tool_format_texts,
    "performing": formats.performing_texts,
    "agents": talk.agent_texts,
    "families": talk.family_texts,
    "web": talk.web_texts,
    "miniwob": talk.miniwob_texts,
    "prompts": talk.prompt_texts,
    "judges": talk.judge_texts,
    "bundled_model": talk.bundled_texts,
}
MISSING = {"miniwob": miniwob.unavailable_reason}
"""Why a part cannot be made here."""


def texts_of(part: str) -> dict[str, str]:
    """The texts of a part by name."""
    made = PARTS[part]()
    if inspect.iscoroutine(made):
        return asyncio.run(made)
    pairs = list(made)
    assert len(dict(pairs)) == len(pairs), f"{part}: a name is given twice"
    return dict(pairs)


def digests_of(texts: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """The beginnings of SHA-256 by group and item."""
    found: dict[str, dict[str, str]] = {}
    for key, text in texts.items():
        group, _, item = key.rpartition("/")
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        found.setdefault(group, {})[item] = digest[:DIGITS]
    return found


def file_of(part: str) -> Path:
    return FOLDER / f"{part}.json"


def write(part: str, digests: Mapping[str, Mapping[str, str]]) -> None:
    """Make `digests` those that the part must have."""
    file_of(part).parent.mkdir(exist_ok=True)
    file_of(part).write_text(json.dumps(digests, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")


def dump(folder: Path, texts: Mapping[str, str]) -> None:
    """Write every text to a file of its name."""
    for key, text in texts.items():
        path = folder / f"{key}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", errors="surrogatepass")


def differences(part: str) -> list[str]:
    """The names of texts that are new, gone, or another than before. Writes what the environment asks for."""
    texts = texts_of(part)
    if folder := os.environ.get(DUMP):
        dump(Path(folder), texts)
    found = digests_of(texts)
    if os.environ.get(WRITE):
        write(part, found)
    wanted = json.loads(file_of(part).read_text(encoding="utf-8"))
    pairs = {(group, item) for digests in (found, wanted) for group, items in digests.items() for item in items}
    return [
        f"{group}/{item}: {'new' if before is None else 'gone' if after is None else 'changed'}"
        for group, item in sorted(pairs)
        if (before := wanted.get(group, {}).get(item)) != (after := found.get(group, {}).get(item))
    ]

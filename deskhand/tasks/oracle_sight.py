"""Whether an oracle acts only on what was readable: in the instruction, or on a frame that it was given.

Used by the audit and the tests; start with `unread_texts`. `deskhand sft` teaches what oracles do, so an oracle that
types a number which no frame has shown teaches a model to guess.

Each word that an oracle types, and each arrow key or Tab that a step repeats, must be explained by one of: the
instruction; what everyone knows of the program (`Task.oracle_knows`); a text that was on a frame; texts on frames from
which it follows (`Task.oracle_follows`). Frames are read from window titles and the accessibility tree, of which only
what is on the screen counts. Terminals have no tree, so a text in them is compared with glyphs of their font.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from xml.etree import ElementTree

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from deskhand.actions.ops import Answer, Key, Op, Type
from deskhand.desktop.base import StageableDesktop
from deskhand.desktop.local.desktop import LocalDesktop
from deskhand.errors import ConfigError, InfrastructureError
from deskhand.tasks.task import Task

TREE_TIMEOUT_S, TREE_HEAD = 40.0, 1000
COUNTED_KEYS = frozenset({"tab", "up", "down", "left", "right"})
TERMINALS = ("xterm",)
"""Window classes without an accessibility tree."""
TERMINAL_FONT, TERMINAL_SIZES_PX = "DejaVuSansMono.ttf", range(8, 19)
SAME_GLYPHS = 0.97
"""Minimum correlation of a drawn text with the screen."""
OTHER_GLYPHS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
SPACE = "https://accessibility.ubuntu.example.org/ns/"


def words_of(text: str) -> list[str]:
    """Return the words of a text in lower case."""
    return re.findall(r"\w+", text.casefold())


def sources_of(task: Task, instruction: str, ops: Iterable[Op]) -> dict[str, tuple[str, ...]]:
    """Return what `ops` act on beyond the instruction and general knowledge, with the texts that must have been on a
    frame before. Nothing explains a repeated key that the task does not list: its texts are empty.
    """
    follows = {key.casefold(): texts for key, texts in (task.oracle_follows or {}).items()}
    known = {word for text in (instruction, *task.oracle_knows) for word in words_of(text)}
    found: dict[str, tuple[str, ...]] = {}
    last = ""
    for op in ops:
        key = op.keys[-1].casefold() if isinstance(op, Key) else ""
        if key and key == last and key in COUNTED_KEYS:
            what = f"{key} several times"
            found[what] = follows.get(what, ())
        last = key
        if isinstance(op, Type | Answer):
            found |= {word: follows.get(word, (word,)) for word in words_of(op.text) if word not in known}
    return found


@dataclass
class FrameTexts:
    """The wanted texts, and those that were on a frame so far."""

    wanted: set[str]
    seen: set[str] = field(default_factory=set)
    cut_short: bool = False
    """Whether a tree could not be read whole in time."""

    async def read(self, desktop: StageableDesktop) -> None:
        """Add the wanted texts that the current frame shows."""
        if self.wanted <= self.seen:
            return
        windows = await desktop.windows()
        texts = [window.title for window in windows]
        limit = {"timeout_s": TREE_TIMEOUT_S} if isinstance(desktop, LocalDesktop) else {}
        tree = await desktop.accessibility_tree(**limit)
        if tree is None:
            raise ConfigError("the desktop has no accessibility tree; reset it with accessibility=True")
        self.cut_short = self.cut_short or 'truncated="true"' in tree[:TREE_HEAD]
        texts += shown_texts(tree, *(await desktop.observe()).size)
        joined = f" {' | '.join(' '.join(words_of(text)) for text in texts)} "
        self.seen |= {text for text in self.wanted if f" {' '.join(words_of(text))} " in joined}
        if not self.wanted <= self.seen and any(window.wm_class.split(".")[0] in TERMINALS for window in windows):
            rgb = (await desktop.observe()).rgb()
            for window in windows:
                if window.wm_class.split(".")[0] in TERMINALS:
                    part = rgb[window.y : window.y + window.height, window.x : window.x + window.width]
                    left = sorted(self.wanted - self.seen)
                    self.seen |= {text for text in left if await asyncio.to_thread(has_glyphs, part, text)}


async def unread_texts(task: Task, desktop: StageableDesktop, steps: list[list[Op]]) -> list[str]:
    """Play the oracle of a staged task and return what it acted on before a frame showed it, one line each.

    `steps` are those of an earlier run: they say what to look for, so a desktop needs an accessibility tree only if
    `needs_frames(task, instruction, steps)`. Raises `ConfigError` without a tree, `InfrastructureError` if the tree
    takes too long.
    """
    instruction = await task.resolve_instruction(desktop)
    texts = FrameTexts({text for ops in steps for each in sources_of(task, instruction, ops).values() for text in each})
    problems: list[str] = []
    index = 0
    async for ops in task.oracle(desktop):
        sources = sources_of(task, instruction, ops)
        await texts.read(desktop)
        for what, wanted in sources.items():
            unread = [text for text in wanted if text not in texts.seen]
            if unread or not wanted:
                why = f"no frame has shown {', '.join(map(repr, unread))}" if unread else "oracle_follows lists no text"
                problems.append(f"step {index + 1} acts on {what!r}, and {why}")
        await desktop.perform(ops, action_id=f"sight#{task.id}#{index}")
        index += 1
    if problems and texts.cut_short:
        raise InfrastructureError(f"the accessibility tree could not be read within {TREE_TIMEOUT_S:g} s")
    return problems


def needs_frames(task: Task, instruction: str, steps: Iterable[Iterable[Op]]) -> bool:
    """Return whether the oracle acted on anything that only frames can explain."""
    return task.oracle_follows is not None and any(sources_of(task, instruction, ops) for ops in steps)


def shown_texts(tree: str, width: int, height: int) -> list[str]:
    """Return names and texts of the elements that lie on the screen of an accessibility tree (XML)."""
    return [
        text
        for element in ElementTree.fromstring(tree).iter()
        if _is_on_screen(element.attrib, width, height)
        for text in (element.get("name"), element.text)
        if text and text.strip()
    ]


def _is_on_screen(attributes: Mapping[str, str], width: int, height: int) -> bool:
    place, size = (attributes.get(f"{{{SPACE}component}}{name}") for name in ("screencoord", "size"))
    if place is None or size is None:
        return False
    (x, y), (wide, high) = ([int(part) for part in pair.strip("()").split(",")] for pair in (place, size))
    return wide > 0 and high > 0 and x >= 0 and y >= 0 and x + wide <= width and y + high <= height


def has_glyphs(rgb: np.ndarray, text: str) -> bool:
    """Return whether a terminal's pixels (`uint8[H, W, 3]`) show a text in its font.

    The text must fit better than every other text that differs in one letter or digit.
    """
    image = rgb.astype(np.float32).mean(axis=2)
    ink = np.abs(image - np.median(image))
    fits = {size: _best_fit(ink, _drawn(text.upper(), size)) for size in TERMINAL_SIZES_PX}
    size = max(fits, key=lambda each: fits[each])
    if fits[size] < SAME_GLYPHS:
        return False
    others = (
        text[:index] + sign + text[index + 1 :]
        for index, own in enumerate(text.upper())
        for sign in OTHER_GLYPHS
        if sign != own
    )
    return all(_best_fit(ink, _drawn(other.upper(), size)) < fits[size] for other in others)


def _drawn(text: str, size_px: int) -> np.ndarray:
    """Draw a text as a terminal does: each sign in a cell of whole pixels."""
    font = ImageFont.truetype(TERMINAL_FONT, size_px)
    cell = math.ceil(font.getlength("M"))
    image = Image.new("L", (cell * len(text), 2 * size_px))
    for index, sign in enumerate(text):
        ImageDraw.Draw(image).text((index * cell, 0), sign, font=font, fill=255)
    drawn = np.asarray(image, np.float32)
    rows = np.flatnonzero(drawn.any(axis=1))
    return drawn[rows[0] : rows[-1] + 1]


def _best_fit(ink: np.ndarray, glyphs: np.ndarray) -> float:
    """Return the highest normalized correlation of `glyphs` with a part of `ink` of its size."""
    if glyphs.shape[0] > ink.shape[0] or glyphs.shape[1] > ink.shape[1]:
        return 0.0
    parts = np.lib.stride_tricks.sliding_window_view(ink, glyphs.shape)
    pattern = glyphs - glyphs.mean()
    products = np.einsum("abij,ij->ab", parts, pattern)
    spread = parts.std(axis=(2, 3)) * glyphs.std() * glyphs.size
    return float((products / np.maximum(spread, 1e-3)).max())

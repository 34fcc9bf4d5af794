"""Actor for scripted solutions: clicks, keys and text only, with targets from the accessibility tree."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from xml.etree import ElementTree

from deskhand.actions.ops import Click, Drag, Key, Op, Scroll, Type, screen_px
from deskhand.actions.ops import Point as OpPoint
from deskhand.desktop.base import StageableDesktop

_PLACE = "{https://accessibility.ubuntu.example.org/ns/component}"
_STATE = "{https://accessibility.ubuntu.example.org/ns/state}"
LOOK_S = 120.0
"""Maximum wait for a window or node; long, because other processes may share the cores."""


@dataclass(frozen=True)
class Node:
    """Accessible object: role, name, text and rectangle in pixels."""

    role: str
    name: str
    text: str
    x: int
    y: int
    width: int
    height: int
    states: frozenset[str]

    @property
    def center(self) -> tuple[int, int]:
        return self.x + self.width // 2, self.y + self.height // 2


class ScriptedActor:
    """Acts on `desktop`, whose screen is `width` x `height` pixels; `ops` are all executed ops."""

    def __init__(self, desktop: StageableDesktop, width: int, height: int) -> None:
        self.desktop = desktop
        self._size = width, height
        self.ops: list[Op] = []

    async def do(self, *ops: Op) -> None:
        await self.desktop.perform(list(ops), action_id=secrets.token_hex(8))
        self.ops += ops

    def at(self, x: int, y: int) -> OpPoint:
        return OpPoint(x, y, screen_px(*self._size))

    async def click(self, x: int, y: int, button: str = "left", count: int = 1) -> None:
        await self.do(Click(self.at(x, y), button, count))  # pyright: ignore[reportArgumentType]

    async def drag(self, *places: tuple[int, int]) -> None:
        await self.do(Drag(tuple(self.at(*place) for place in places)))

    async def scroll(self, x: int, y: int, notches: int) -> None:
        await self.do(Scroll(dy=notches, point=self.at(x, y)))

    async def key(self, *chords: str) -> None:
        for chord in chords:
            await self.do(Key(tuple(chord.split("+"))))

    async def type(self, text: str) -> None:
        await self.do(Type(text))

    async def nodes(self) -> list[Node]:
        """Return all nodes with a rectangle."""
        return list(nodes_of(await self.desktop.accessibility_tree() or "<none/>"))

    async def see(self, role: str, name: str, nth: int = 0, within_s: float = LOOK_S) -> Node:
        """Return the `nth` node whose role and name match the patterns, ignoring case."""
        deadline = time.monotonic() + within_s
        while True:
            seen = await self.nodes()
            found = [
                node for node in seen if _fits(role, node.role) and _fits(name, node.name) and self._on_screen(node)
            ]
            if len(found) > nth or (nth < 0 and found):
                return found[nth]
            if time.monotonic() > deadline:
                shown = sorted({f"{node.role} {node.name!r}" for node in seen if node.name})
                raise AssertionError(f"{role} {name!r} is not on the screen; there is {', '.join(shown)[:3000]}")
            await asyncio.sleep(0.3)

    async def reveal(self, role: str, name: str, at: tuple[int, int], rows: tuple[int, int]) -> Node:
        """Scroll the pane at `at` until the node lies between `rows`; return it."""
        for _ in range(60):
            found = [node for node in await self.nodes() if _fits(role, node.role) and _fits(name, node.name)]
            if found and rows[0] <= found[0].center[1] <= rows[1]:
                return found[0]
            await self.scroll(*at, -3 if found and found[0].center[1] < rows[0] else 3)
        raise AssertionError(f"{role} {name!r} does not come into view")

    def _on_screen(self, node: Node) -> bool:
        x, y = node.center
        return 0 <= x < self._size[0] and 0 <= y < self._size[1] and node.width > 0 and node.height > 0

    async def press(self, role: str, name: str, nth: int = 0, count: int = 1) -> Node:
        """Click on a node."""
        node = await self.see(role, name, nth)
        await self.click(*node.center, count=count)
        return node

    async def window(self, match: str, within_s: float = LOOK_S) -> None:
        await self.desktop.wait_window(match, timeout_s=within_s)


def _fits(pattern: str, text: str) -> bool:
    return re.fullmatch(pattern, text, re.IGNORECASE | re.DOTALL) is not None


def nodes_of(tree: str) -> Iterator[Node]:
    """Return the nodes of an accessibility tree that have a rectangle."""
    for element in ElementTree.fromstring(tree).iter():
        place, size = (re.findall(r"-?\d+", element.get(_PLACE + key, "")) for key in ("screencoord", "size"))
        if len(place) == len(size) == 2:
            (x, y), (width, height) = map(int, place), map(int, size)
            states = frozenset(key.removeprefix(_STATE) for key in element.attrib if key.startswith(_STATE))
            yield Node(element.tag, element.get("name", ""), (element.text or "").strip(), x, y, width, height, states)

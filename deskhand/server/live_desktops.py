"""Desktops of a running process that people may watch and use: `LiveDesktop`, `LiveDesktops`.

Episodes (`rollout.live_episode`) and `deskhand desktop open` (`OpenDesktop`) register here; `server.live_app` serves
them. Watching reads pixels that exist anyway, so it neither delays an agent nor sends a request to a remote desktop.

Invariant: one person at a time holds a desktop, and nothing is performed without the key of that takeover.
"""

from __future__ import annotations

import asyncio
import hmac
import io
import itertools
import json
import secrets
import time
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from deskhand.actions.ops import TERMINAL_OPS, Op
from deskhand.desktop.base import DesktopSpec, HasLivePixels, StageableDesktop
from deskhand.errors import ConfigError
from deskhand.server.http_errors import HttpError
from deskhand.server.page_events import op_from_event

IDLE_S = 30.0
"""A takeover ends when its page has sent no request for this long."""
TILE_WIDTH = 320
"""Minimum width of a tile in pixels; a smaller screen is sent as it is."""
TILE_INTERVAL_S = 0.4
"""Tiles are read at most this often, whatever the number of viewers."""
_TILE_QUALITY, _SCREEN_QUALITY = 80, 92


@dataclass
class _Holder:
    key: str
    seen_at: float


class LiveDesktop:
    """One desktop: what it shows, what happens on it, and who holds its mouse and keyboard."""

    idle_s: float = IDLE_S

    def __init__(self, name: str) -> None:
        self.id = name
        self._holder: _Holder | None = None

    def facts(self) -> dict[str, Any]:
        """Return what the page shows next to the screen, as JSON."""
        raise NotImplementedError

    def pixels(self, step: int = 1) -> np.ndarray | None:
        """Return every `step`-th row and column of the screen, `uint8[h, w, 4]` (BGRX). Called in threads."""
        raise NotImplementedError

    def size(self) -> tuple[int, int]:
        """Return (width, height) of the screen in pixels."""
        raise NotImplementedError

    async def perform(self, op: Op) -> None:
        """Perform the op of the person who holds the desktop. Raises `HttpError` or `DeskhandError`."""
        raise NotImplementedError

    def refusal(self) -> str:
        """Return why no takeover is possible now; empty if one is."""
        return ""

    @property
    def is_held(self) -> bool:
        holder = self._holder
        if holder is not None and time.monotonic() - holder.seen_at > self.idle_s:
            self._holder = holder = None
        return holder is not None

    def take_over(self) -> str:
        """Give mouse and keyboard to one person; returns the key of the takeover. Raises `HttpError` (409)."""
        if why := self.refusal():
            raise HttpError(409, why)
        if self.is_held:
            raise HttpError(409, "another page has taken over this desktop; it ends when that page returns it")
        self._holder = _Holder(secrets.token_urlsafe(24), time.monotonic())
        return self._holder.key

    def is_holder(self, key: str) -> bool:
        """Whether `key` is that of the takeover now; if so, it stays alive."""
        holder = self._holder
        if not self.is_held or holder is None or not hmac.compare_digest(holder.key.encode(), key.encode()):
            return False
        holder.seen_at = time.monotonic()
        return True

    def _require_holder(self, key: str) -> None:
        if not self.is_holder(key):
            raise HttpError(403, "the key is not that of this desktop's takeover; take over again")

    async def act(self, key: str, event: Any) -> None:
        """Perform one event of the page that holds the desktop. Raises `HttpError` (403) for any other page."""
        self._require_holder(key)
        await self.perform(op_from_event(event, *self.size()))

    def release(self, key: str) -> None:
        """End the takeover. Raises `HttpError` (403) for a key that does not hold the desktop."""
        self._require_holder(key)
        self._holder = None


class OpenDesktop(LiveDesktop):
    """A desktop without a task or an agent, which a person uses directly (`deskhand desktop open`)."""

    def __init__(self, desktop: StageableDesktop, spec: DesktopSpec) -> None:
        super().__init__("desktop")
        self._desktop, self._spec = desktop, spec
        self._action_numbers = itertools.count()

    def facts(self) -> dict[str, Any]:
        return {"state": "open"}

    def pixels(self, step: int = 1) -> np.ndarray | None:
        return self._desktop.live_pixels(step) if isinstance(self._desktop, HasLivePixels) else None

    def size(self) -> tuple[int, int]:
        return self._spec.width, self._spec.height

    async def perform(self, op: Op) -> None:
        if isinstance(op, TERMINAL_OPS):
            raise ConfigError("this desktop has no task to end; press Ctrl-C in the terminal to close it")
        await self._desktop.perform([op], action_id=f"live-{next(self._action_numbers)}")


@dataclass
class _Tile:
    """A place on the wall: its desktop, if any, and what is shown of the last one."""

    desktop: LiveDesktop | None = None
    last: dict[str, Any] | None = None
    """Result of the episode that ended here last."""
    sample: np.ndarray | None = None
    jpeg: bytes = b""
    revision: int = 0


class LiveDesktops:
    """The desktops of a process by place. A desktop takes the first free place, so that tiles do not move."""

    def __init__(self) -> None:
        self._tiles: list[_Tile] = []
        self._by_id: dict[str, _Tile] = {}
        self._revision = time.time_ns() // 1_000_000  # greater than that of an earlier process
        self._read_at = 0.0
        self._reading = asyncio.Lock()

    def add(self, desktop: LiveDesktop) -> None:
        """Show a desktop until `remove`."""
        tile = next((tile for tile in self._tiles if tile.desktop is None), None)
        if tile is None:
            tile = _Tile()
            self._tiles.append(tile)
        tile.desktop, tile.sample = desktop, None
        self._by_id[desktop.id] = tile

    def remove(self, desktop: LiveDesktop, result: dict[str, Any] | None = None) -> None:
        """Free the place of a desktop. `result` stays on the wall until another result replaces it."""
        tile = self._by_id.pop(desktop.id)
        tile.desktop = None
        tile.last = result or tile.last

    def find(self, name: str) -> LiveDesktop:
        """Return a desktop by id. Raises `HttpError` (404) if it is not there, or no longer."""
        tile = self._by_id.get(name)
        if tile is None or tile.desktop is None:
            raise HttpError(404, "this episode is not on a desktop now")
        return tile.desktop

    async def wall(self, since: int) -> bytes:
        """Return all desktops, with the tiles that changed after revision `since`, as `framed`."""
        async with self._reading:
            if time.monotonic() - self._read_at >= TILE_INTERVAL_S:
                self._read_at = time.monotonic()
                await asyncio.to_thread(self._read_tiles, [(tile, tile.desktop) for tile in self._tiles])
        entries, images = [], []
        for place, tile in enumerate(self._tiles):
            entry: dict[str, Any] = {"place": place, "last": tile.last, "image": None}
            if tile.desktop is not None:
                entry |= {"id": tile.desktop.id, "held": tile.desktop.is_held, **tile.desktop.facts()}
            if tile.jpeg and (tile.revision > since or since > self._revision):
                entry["image"] = len(images)
                images.append(tile.jpeg)
            entries.append(entry)
        return framed({"revision": self._revision, "desktops": entries}, images)

    def _read_tiles(self, tiles: list[tuple[_Tile, LiveDesktop | None]]) -> None:
        changed = []
        for tile, desktop in tiles:
            if desktop is None:
                continue
            factor = max(1, desktop.size()[0] // TILE_WIDTH)
            step = max(1, factor // 2)
            sample = desktop.pixels(step)
            if sample is None or (tile.sample is not None and np.array_equal(sample, tile.sample)):
                continue
            tile.sample, tile.jpeg = sample, encode_jpeg(sample, _TILE_QUALITY, reduce=factor // step)
            changed.append(tile)
        if changed:
            self._revision += 1
            for tile in changed:
                tile.revision = self._revision


async def watch(desktop: LiveDesktop, after: str, key: str) -> bytes:
    """Return the facts of one desktop, and its screen unless it is still `after`, as `framed`.

    A request with the key of the takeover keeps the takeover alive.
    """
    holds = bool(key) and desktop.is_holder(key)
    screen, jpeg = await asyncio.to_thread(_screen, desktop, after)
    head = {"id": desktop.id, "held": desktop.is_held, "holds": holds, "refusal": desktop.refusal()}
    head |= {"size": desktop.size(), "screen": screen, "image": 0 if jpeg else None, **desktop.facts()}
    return framed(head, [jpeg] if jpeg else [])


def _screen(desktop: LiveDesktop, after: str) -> tuple[str, bytes]:
    pixels = desktop.pixels()
    if pixels is None:
        return after, b""
    name = f"{zlib.crc32(np.ascontiguousarray(pixels).data):08x}"
    return name, b"" if name == after else encode_jpeg(pixels, _SCREEN_QUALITY)


def encode_jpeg(pixels: np.ndarray, quality: int, *, reduce: int = 1) -> bytes:
    """Return `uint8[H, W, 4]` (BGRX) as JPEG; `reduce` averages squares of that size."""
    height, width = pixels.shape[:2]
    image = Image.frombuffer("RGB", (width, height), np.ascontiguousarray(pixels), "raw", "BGRX", 0, 1)
    if reduce > 1:
        image = image.reduce(reduce)
    buffer = io.BytesIO()
    # Full color resolution for a screen to read, half for a tile.
    image.save(buffer, "JPEG", quality=quality, subsampling=2 if reduce > 1 else 0)
    return buffer.getvalue()


def framed(head: dict[str, Any], images: list[bytes]) -> bytes:
    """Return a line of JSON with the lengths of the images, then the images. `image` in `head` is an index of them."""
    line = json.dumps({**head, "images": [len(image) for image in images]}, allow_nan=False)
    return b"".join([line.encode(), b"\n", *images])

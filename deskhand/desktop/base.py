"""What a desktop is. Invariant: actions are at-most-once, and a frame that reaches a caller is whole, fresh and of the right size.

`Desktop` is the protocol that every kind of desktop (embedded, OSWorld, WAA, bridge, gateway) fulfils.
"""

from __future__ import annotations

import hashlib
import io
import socket
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
from PIL import Image

from deskhand.actions.ops import Op

if TYPE_CHECKING:
    from deskhand.desktop.remote.quota import QuotaManager


@dataclass(frozen=True)
class Frame:
    """One settled screen.

    `bgrx` is `uint8[H, W, 4]`, read-only; the fourth channel is undefined. `rgb()`, `png()` and `sha256` are lazy and
    must not be called on the event loop (use `asyncio.to_thread`).
    """

    bgrx: np.ndarray
    sequence: int
    content_hash: str
    """Fast hash of the pixels (not cryptographic); equal pixels have equal hashes."""
    settle_ms: float
    """Milliseconds from the last input until the screen was quiet."""
    settle_reason: str
    """"quiet", "moving" (quiet but for small places that change by themselves, such as a caret, a clock or a spinner), "cap" (still
    changing when the budget ended), or "none" (no settle was asked for)."""
    changed_bbox: tuple[int, int, int, int] | None
    """(left, top, right, bottom), half-open, that changed since the frame before; None when nothing did."""
    cursor: tuple[int, int]
    """Where the pointer is; its picture is in the pixels."""
    moving: tuple[tuple[int, int, int, int], ...] = ()
    """Boxes of the small places that change by themselves; a change inside them is no sign that an action did anything."""
    under_cursor: tuple[int, int, np.ndarray] | None = None
    """(left, top, `uint8[h, w, 4]`): the pixels that the pointer covers; None when it is not in the picture."""
    size: tuple[int, int] = field(init=False)
    """(width, height) in pixels."""

    def __post_init__(self) -> None:
        height, width = self.bgrx.shape[:2]
        object.__setattr__(self, "size", (width, height))

    def without_cursor(self) -> Frame:
        """The same screen with the pointer left out; its `content_hash` is empty (ask `sha256`)."""
        if self.under_cursor is None:
            return self
        left, top, pixels = self.under_cursor
        bgrx = self.bgrx.copy()
        bgrx[top : top + pixels.shape[0], left : left + pixels.shape[1]] = pixels
        bgrx.flags.writeable = False
        return replace(self, bgrx=bgrx, content_hash="", under_cursor=None)

    def rgb(self) -> np.ndarray:
        """`uint8[H, W, 3]`, a new contiguous array."""
        return np.ascontiguousarray(self.bgrx[:, :, 2::-1])

    @cached_property
    def _png(self) -> bytes:
        buffer = io.BytesIO()
        Image.fromarray(self.rgb()).save(buffer, format="PNG", compress_level=1)
        return buffer.getvalue()

    def png(self) -> bytes:
        """The frame as PNG bytes; encoded once."""
        return self._png

    @cached_property
    def sha256(self) -> str:
        """SHA-256 (hex) of the raw RGB bytes: the name of the pixels in the store and the recorder."""
        return hashlib.sha256(self.rgb().tobytes()).hexdigest()


@dataclass(frozen=True)
class CommandResult:
    """What a finished command said."""

    returncode: int
    stdout: bytes
    stderr: bytes


@dataclass(frozen=True)
class Window:
    """A top-level window as the X server (not the guest) tells it. The box is the client area in screen pixels."""

    id: int
    title: str
    wm_class: str
    x: int
    y: int
    width: int
    height: int
    frame_top: int = 0
    """Height of the window manager's title bar above the client area."""
    frame_left: int = 0


@dataclass(frozen=True)
class DesktopSpec:
    """What a desktop is reset to: the screen size in pixels and a theme name of the embedded desktop."""

    name: str = "plain"
    width: int = 1280
    height: int = 720
    accessibility: bool = False
    """Whether programs tell of themselves, so that there is an accessibility tree; it makes them slower."""
    network: tuple[str, ...] = ()
    """Destinations that the guests may reach, as `host`, `*.host` or `host:port`; none unless they are named."""


@runtime_checkable
class Desktop(Protocol):
    """One desktop, used by one episode at a time. All methods may raise `InfrastructureError`."""

    async def reset(self, template: DesktopSpec) -> Frame:
        """Fresh processes, fresh home, settled first frame."""
        ...

    async def perform(self, ops: list[Op], *, action_id: str) -> Frame:
        """Perform `ops` at most once and return the settled screen.

        `action_id` is the idempotency key: the same id again returns the first call's frame and performs nothing.
        Raises `AgentError` (nothing performed) when an op cannot be performed on this screen, `DeliveryUnknown` when it
        is not known whether it was performed.
        """
        ...

    async def observe(self) -> Frame:
        """The settled screen now."""
        ...

    async def run(
        self, argv: list[str], *, timeout_s: float = 30.0, env: dict[str, str] | None = None, cwd: str | None = None
    ) -> CommandResult:
        """Run a command inside the desktop and wait for it."""
        ...

    async def pull(self, path: str) -> bytes:
        """Read a file of the guest's home (absolute guest path or relative to home). Raises `FileNotFoundError`."""
        ...

    async def push(self, path: str, data: bytes) -> None:
        """Write a file of the guest's home, creating folders."""
        ...

    async def accessibility_tree(self) -> str | None:
        """The accessibility tree as XML, or None where there is none. Guest-trusted."""
        ...

    async def close(self) -> None:
        """End the desktop and everything that it started. Idempotent."""
        ...


@runtime_checkable
class HasGuestNetwork(Protocol):
    """A desktop whose guests have a network of their own, in which they can be called from outside."""

    async def socket_inside(self) -> socket.socket:
        """A TCP socket of that network, not connected; the caller closes it. Raises `ConfigError` where guests have none."""
        ...


class StageableDesktop(Desktop, Protocol):
    """A desktop that task set-up can stage: launch programs, see and place windows, by the host's own hand."""

    async def launch(self, argv: list[str], *, env: dict[str, str] | None = None, cwd: str | None = None) -> int:
        """Start a program and do not wait; returns its process id on the host, 0 when it has ended already."""
        ...

    async def windows(self) -> list[Window]:
        """Managed top-level windows, oldest first, from the X server."""
        ...

    async def wait_window(self, match: str, *, timeout_s: float = 20.0, count: int = 1) -> list[Window]:
        """Wait until `count` windows have `match` as a case-insensitive substring of their WM_CLASS or title."""
        ...

    async def place_window(
        self, window: Window, x: int, y: int, width: int | None = None, height: int | None = None
    ) -> Window:
        """Move (and resize) so that the client area's top-left is at (x, y); returns the window as it then is."""
        ...

    async def activate_window(self, window: Window) -> None:
        """Bring a window to the front and give it the keyboard; one that is gone is no error."""
        ...

    async def close_window(self, window: Window) -> None:
        """Ask a window to close, as its button does; the program may ask back."""
        ...

    async def clipboard(self, selection: str = "CLIPBOARD") -> str | None:
        """Text of an X selection as its owner gives it, or None. Guest-trusted."""
        ...

    async def listdir(self, path: str) -> list[str]:
        """Names in a folder of the guest's home. Raises `FileNotFoundError`."""
        ...


@dataclass(frozen=True)
class Lease:
    """The right to use `desktop` until it is released; `epoch` is unique in its pool's book of leases."""

    desktop: StageableDesktop
    epoch: int


class DesktopPoolProtocol(Protocol):
    """What lends desktops, whether they are on this machine or elsewhere."""

    @property
    def quota(self) -> QuotaManager | None:
        """Where refused work waits; None for desktops of this machine."""
        ...

    @property
    def episode_timeout_s(self) -> float | None:
        """The most that an episode may take; None where nothing bounds it."""
        ...

    async def lease(self, template: DesktopSpec | None = None) -> Lease:
        """A fresh desktop in that state (None: the pool's own). Waits while none is free. Raises `InfrastructureError`."""
        ...

    async def release(self, lease: Lease) -> None:
        """Give a lease back. A second release of the same lease does nothing."""
        ...

    async def close(self) -> None:
        """Give all leases back. Idempotent."""
        ...

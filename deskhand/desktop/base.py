"""The `Desktop` protocol, frames, leases and pools.

Every desktop (local, desktop server, sandbox, OSWorld or WAA machine) implements `Desktop`; `rollout` and `tasks` use
nothing else.

Invariant: an action is performed at most once, and a frame is complete, current and of the right size.
"""

from __future__ import annotations

import hashlib
import io
import socket
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
from PIL import Image

from deskhand.actions.ops import Op

if TYPE_CHECKING:
    from deskhand.desktop.remote.quota import QuotaManager
    from deskhand.desktop.remote.retrying_client import RetryingClient


@dataclass(frozen=True)
class Frame:
    """One settled screen.

    `bgrx` is `uint8[H, W, 4]`, read-only; the fourth channel is undefined. `rgb()`, `png()` and `sha256` are lazy and
    must not be called on the event loop (use `asyncio.to_thread`).
    """

    bgrx: np.ndarray
    sequence: int
    content_hash: str
    """Fast non-cryptographic hash of the pixels."""
    settle_ms: float
    """Milliseconds from the last input until the screen settled."""
    settle_reason: str
    """ "quiet"; "moving" (only small animated regions change: a caret, clock or spinner); "cap" (still changing at the
    time limit); or "none" (settling was not requested)."""
    changed_bbox: tuple[int, int, int, int] | None
    """(left, top, right, bottom), half-open, of the change since the previous frame; None without a change."""
    cursor: tuple[int, int]
    """Pointer position; the pointer itself is drawn into the pixels."""
    moving: tuple[tuple[int, int, int, int], ...] = ()
    """Boxes of small animated regions; a change inside them is not the effect of an action."""
    under_cursor: tuple[int, int, np.ndarray] | None = None
    """(left, top, `uint8[h, w, 4]`): the pixels that the pointer covers; None if it is not drawn."""
    size: tuple[int, int] = field(init=False)
    """(width, height) in pixels."""

    def __post_init__(self) -> None:
        height, width = self.bgrx.shape[:2]
        object.__setattr__(self, "size", (width, height))

    def without_cursor(self) -> Frame:
        """Return the same screen without the pointer; its `content_hash` is empty (use `sha256`)."""
        if self.under_cursor is None:
            return self
        left, top, pixels = self.under_cursor
        bgrx = self.bgrx.copy()
        bgrx[top : top + pixels.shape[0], left : left + pixels.shape[1]] = pixels
        bgrx.flags.writeable = False
        return replace(self, bgrx=bgrx, content_hash="", under_cursor=None)

    def resized(self, size: tuple[int, int]) -> Frame:
        """Return the screen scaled to (width, height), as Qwen's image processors scale it (bicubic).

        Boxes and pointer stay in pixels of the screen; `content_hash` is empty (use `sha256`). Takes milliseconds.
        """
        rgb = Image.fromarray(self.rgb()).resize(size, Image.Resampling.BICUBIC)
        bgrx = np.zeros((size[1], size[0], 4), dtype=np.uint8)
        bgrx[:, :, 2::-1] = np.asarray(rgb)
        bgrx.flags.writeable = False
        return replace(self, bgrx=bgrx, content_hash="", under_cursor=None)

    @cached_property
    def _rgb(self) -> np.ndarray:
        # Pillow unpacks BGRX four times as fast as numpy copies the reversed channels.
        pixels = Image.frombuffer("RGB", self.size, np.ascontiguousarray(self.bgrx), "raw", "BGRX", 0, 1).tobytes()
        return np.frombuffer(pixels, np.uint8).reshape(self.size[1], self.size[0], 3)

    def rgb(self) -> np.ndarray:
        """Return `uint8[H, W, 3]`, contiguous and read-only, converted once."""
        return self._rgb

    @cached_property
    def _png(self) -> bytes:
        buffer = io.BytesIO()
        Image.fromarray(self.rgb()).save(buffer, format="PNG", compress_level=1)
        return buffer.getvalue()

    def png(self) -> bytes:
        """Return the frame as PNG bytes, encoded once."""
        return self._png

    @cached_property
    def sha256(self) -> str:
        """SHA-256 (hex) of the raw RGB bytes: the frame's id in the store and the recorder."""
        return hashlib.sha256(self.rgb().data).hexdigest()


@dataclass(frozen=True)
class CommandResult:
    """Exit code and output of a command."""

    returncode: int
    stdout: bytes
    stderr: bytes


@dataclass(frozen=True)
class Window:
    """A top-level window as the X server reports it. The box is the client area in screen pixels."""

    id: int
    title: str
    wm_class: str
    x: int
    y: int
    width: int
    height: int
    frame_top: int = 0
    """Height of the title bar above the client area."""
    frame_left: int = 0


@dataclass(frozen=True)
class DesktopSpec:
    """The state that a desktop is reset to: screen size in pixels and theme of the local desktop."""

    name: str = "plain"
    width: int = 1280
    height: int = 720
    accessibility: bool = False
    """Whether programs expose an accessibility tree, which makes them slower."""
    network: tuple[str, ...] = ()
    """Destinations that guests may reach, as `host`, `*.host` or `host:port`; none by default."""


@runtime_checkable
class Desktop(Protocol):
    """One desktop, used by one episode at a time. All methods may raise `InfrastructureError`."""

    async def reset(self, spec: DesktopSpec) -> Frame:
        """Start fresh processes with a fresh home and return the settled first frame."""
        ...

    async def perform(self, ops: list[Op], *, action_id: str) -> Frame:
        """Perform `ops` at most once and return the settled screen; a repeated `action_id` returns the first frame.

        Raises `AgentError` (nothing performed) if an op is impossible on this screen, `DeliveryUnknown` if the outcome
        is unknown.
        """
        ...

    async def observe(self) -> Frame:
        """Return the settled screen."""
        ...

    async def run(
        self, argv: list[str], *, timeout_s: float = 30.0, env: dict[str, str] | None = None, cwd: str | None = None
    ) -> CommandResult:
        """Run a command in the desktop to completion; `cwd` is its directory (absolute, or relative to home)."""
        ...

    async def pull(self, path: str) -> bytes:
        """Read a file of the guest's home (absolute guest path, or relative to home). Raises `FileNotFoundError`."""
        ...

    async def push(self, path: str, data: bytes) -> None:
        """Write a file of the guest's home and create its directories."""
        ...

    async def accessibility_tree(self) -> str | None:
        """Return the accessibility tree as XML, or None without one. Comes from the guest: untrusted."""
        ...

    async def close(self) -> None:
        """Stop the desktop and everything that it started. Idempotent."""
        ...


@runtime_checkable
class HasGuestNetwork(Protocol):
    """A desktop whose guests have a network of their own that the host can connect to."""

    async def socket_inside(self) -> socket.socket:
        """Return an unconnected TCP socket in the guest network. Raises `ConfigError` without such a network."""
        ...


@runtime_checkable
class CanServeGuests(Protocol):
    """A desktop in whose guest network the host can listen."""

    async def listen_inside(self, port: int, on_close: Callable[[], None]) -> socket.socket:
        """Return a listener on 127.0.0.1:`port` of the guest network, which no guest can replace or stop.

        `on_close` is called when the desktop is reset or closed; the caller closes the listener then. Raises
        `ConfigError` without such a network.
        """
        ...


@runtime_checkable
class HasLivePixels(Protocol):
    """A desktop whose screen can be read at any time, without a request to it and without waiting."""

    def live_pixels(self, step: int = 1) -> np.ndarray | None:
        """Return every `step`-th row and column as `uint8[h, w, 4]` (BGRX, without the pointer); None if it is closed.

        May be torn. Thread-safe.
        """
        ...


@runtime_checkable
class HasProgramList(Protocol):
    """A desktop whose host sees what launched programs do, whatever their windows show."""

    async def running_programs(self) -> dict[int, bool | None]:
        """Return whether a command has run in each launched program that still runs, by the id that `launch` returned.

        A command is a process that the program, or one below it, has started and waited for, as shells do. None if the
        kernel does not say.
        """
        ...

    async def exit_codes(self) -> dict[int, int]:
        """Return the exit codes of launched programs that have ended, as a shell has them (128 + signal)."""
        ...

    async def wait_until_idle(self, timeout_s: float) -> bool:
        """Wait until no guest runs or waits for the CPU, at most `timeout_s`. Return whether that is so."""
        ...


@runtime_checkable
class HasCopiedText(Protocol):
    """A desktop whose host sees which program puts a text into the clipboard."""

    async def copied_text(self, window: int) -> str | None:
        """Press Ctrl+C; return what the program of a window copies then. None if it copies nothing, or another program
        claims the clipboard meanwhile."""
        ...


@runtime_checkable
class HasShell(Protocol):
    """A desktop that runs command lines in its system's own shell, as OpenAdapt's task files do."""

    async def shell(self, command: str, *, timeout_s: float = 30.0) -> CommandResult:
        """Run a command line to completion."""
        ...

    async def launch_shell(self, command: str) -> None:
        """Start a command line without waiting."""
        ...

    async def open_file(self, path: str) -> None:
        """Open a file with the program of its type. Raises `ConfigError` if the desktop has no such table."""
        ...


@runtime_checkable
class HasTaskEvaluator(Protocol):
    """A desktop of a machine with Windows Agent Arena's evaluate server."""

    def open_evaluator(self, port: int | None = None) -> RetryingClient:
        """Return a new connection to the evaluate server of this machine. Raises `InfrastructureError` without one.

        `port` is the server's port on the machine's host (None: the desktop's own setting). A desktop server or a
        gateway knows the port itself and ignores it.
        """
        ...


class StageableDesktop(Desktop, Protocol):
    """A desktop that task set-up can prepare from the host: launch programs, find and place windows."""

    async def launch(self, argv: list[str], *, env: dict[str, str] | None = None, cwd: str | None = None) -> int:
        """Start a program without waiting; `cwd` is as in `run`.

        Returns its host process id, 0 if it has already exited.
        """
        ...

    async def windows(self) -> list[Window]:
        """Return managed top-level windows, oldest first, from the X server."""
        ...

    async def wait_window(self, match: str, *, timeout_s: float = 20.0, count: int = 1) -> list[Window]:
        """Wait until `count` windows contain `match` in their WM_CLASS or title, ignoring case."""
        ...

    async def place_window(
        self, window: Window, x: int, y: int, width: int | None = None, height: int | None = None
    ) -> Window:
        """Move (and resize) a window so that its client area starts at (x, y); returns its new state."""
        ...

    async def activate_window(self, window: Window) -> None:
        """Raise and focus a window: keys go to it then. Ignored if it no longer exists."""
        ...

    async def close_window(self, window: Window) -> None:
        """Request that a window closes, like its close button; the program may ask for confirmation."""
        ...

    async def clipboard(self, selection: str = "CLIPBOARD") -> str | None:
        """Return the text of an X selection, or None. Comes from the guest: untrusted."""
        ...

    async def listdir(self, path: str) -> list[str]:
        """Return the names in a directory of the guest's home. Raises `FileNotFoundError`."""
        ...


@dataclass(frozen=True)
class Lease:
    """The right to use `desktop` until released; `epoch` is unique in the pool's lease store."""

    desktop: StageableDesktop
    epoch: int


class DesktopPoolProtocol(Protocol):
    """A pool that leases desktops, local or remote."""

    @property
    def quota(self) -> QuotaManager | None:
        """Queue for work refused because of a quota; None for local desktops."""
        ...

    @property
    def episode_timeout_s(self) -> float | None:
        """Maximum duration of an episode; None for no limit."""
        ...

    async def lease(self, spec: DesktopSpec | None = None) -> Lease:
        """Return a fresh desktop in this state (None: the pool's own). Waits for a free one."""
        ...

    async def release(self, lease: Lease) -> None:
        """Return a lease. Idempotent."""
        ...

    async def close(self) -> None:
        """Return all leases. Idempotent."""
        ...

"""A desktop in memory for tests of what is built on desktops: a gray screen with colored squares that notice clicks.

It fulfils the `StagedDesktop` calls that episodes make, keeps at-most-once by action id, and can be told to fail or to
be slow.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import numpy as np

from deskhand.actions.ops import Click, Done, Op, Point, Type, screen_px, to_screen_px
from deskhand.desktop.base import CommandResult, DesktopSpec, Frame
from deskhand.errors import InfrastructureError
from deskhand.tasks.task import CheckResult, Milestone, Rect, Task

WIDTH, HEIGHT = 64, 48


class PaintedDesktop:
    """`delay_s` is taken by every action; `fail_at` is the number of the action that raises `failure` (0: the
    reset)."""

    def __init__(
        self,
        *,
        delay_s: float = 0.0,
        fail_at: int | None = None,
        failure: type[InfrastructureError] = InfrastructureError,
    ) -> None:
        self.delay_s, self.fail_at, self.failure = delay_s, fail_at, failure
        self.squares: dict[str, Rect] = {}
        self.clicked: list[str] = []
        self.typed = ""
        self.actions = 0
        self.closed = False
        self._done: dict[str, Frame] = {}
        self._sequence = 0

    async def reset(self, spec: DesktopSpec) -> Frame:
        self.squares, self.clicked, self.typed, self._done = {}, [], "", {}
        self.size = (spec.width, spec.height)
        if self.fail_at == 0:
            raise self.failure("painted desktop: told to fail")
        return await self.observe()

    async def perform(self, ops: list[Op], *, action_id: str) -> Frame:
        if action_id in self._done:
            return self._done[action_id]
        hits = [to_screen_px(op.point, *self.size) for op in ops if isinstance(op, Click) and op.point is not None]
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        self.actions += 1
        if self.actions == self.fail_at:
            raise self.failure("painted desktop: told to fail")
        self.clicked += [name for hit in hits for name, box in self.squares.items() if box.contains(*hit)]
        self.typed += "".join(op.text for op in ops if isinstance(op, Type))
        self._done[action_id] = frame = await self.observe()
        return frame

    async def observe(self) -> Frame:
        pixels = np.full((self.size[1], self.size[0], 4), 128, dtype=np.uint8)
        for name, box in self.squares.items():
            pixels[box.top : box.bottom, box.left : box.right, :3] = (
                255 if name in self.clicked else sum(name.encode()) % 100
            )
        self._sequence += 1
        return Frame(pixels, self._sequence, str(hash(pixels.tobytes())), 1.0, "quiet", (0, 0, 1, 1), (0, 0))

    async def run(self, argv: list[str], **_: object) -> CommandResult:
        return CommandResult(0, b"", b"")

    async def pull(self, path: str) -> bytes:
        raise FileNotFoundError(path)

    async def push(self, path: str, data: bytes) -> None:
        return None

    async def accessibility_tree(self) -> str | None:
        return None

    async def close(self) -> None:
        self.closed = True


class PaintedPool:
    """Lends painted desktops; counts what is out. `delays` are those of the places, in turn of leasing."""

    quota = episode_timeout_s = None

    def __init__(self, size: int = 4, *, delays: list[float] | None = None, fail_at: int | None = None) -> None:
        self._free = list(range(size))
        self._delays = delays or [0.0] * size
        self._fail_at = fail_at
        self._places = asyncio.Semaphore(size)
        self.leased: dict[int, PaintedLease] = {}
        self.ended: dict[int, int] = dict.fromkeys(range(size), 0)

    async def lease(self, spec: DesktopSpec | None = None) -> PaintedLease:
        await self._places.acquire()
        place = self._free.pop()
        self.leased[place] = PaintedLease(place, PaintedDesktop(delay_s=self._delays[place], fail_at=self._fail_at))
        return self.leased[place]

    async def release(self, lease: PaintedLease) -> None:
        if self.leased.pop(lease.place, None) is None:
            return
        await lease.desktop.close()
        self.ended[lease.place] += 1
        self._free.append(lease.place)
        self._places.release()


class PaintedLease:
    def __init__(self, place: int, desktop: PaintedDesktop) -> None:
        self.place, self.desktop = place, desktop


def square_task(seed: int) -> Task:
    """Click the square that is named, then say done. One of two squares is right."""
    rng = random.Random(seed)
    left = Rect(4, rng.randrange(4, 30), 20, 44)
    right = Rect(36, rng.randrange(4, 30), 52, 44)
    wanted = rng.choice(["blue", "red"])

    async def setup(desktop: PaintedDesktop) -> None:
        desktop.squares = {"blue": left, "red": right}

    async def check(desktop: PaintedDesktop) -> CheckResult:
        return CheckResult(float(desktop.clicked == [wanted]), f"clicked {desktop.clicked}")

    async def touched(desktop: PaintedDesktop) -> CheckResult:
        return CheckResult(float(wanted in desktop.clicked))

    async def oracle(desktop: PaintedDesktop) -> AsyncIterator[list[Op]]:
        yield [Click(Point(*desktop.squares[wanted].center, screen_px(WIDTH, HEIGHT)))]
        yield [Done()]

    async def targets(desktop: PaintedDesktop) -> tuple[Rect | None, list[Rect]]:
        return desktop.squares[wanted], [box for name, box in desktop.squares.items() if name != wanted]

    return Task(
        id=f"painted/square/{seed}",
        family="square",
        suite="painted",
        seed=seed,
        instruction=f"Click the {wanted} square",
        width=WIDTH,
        height=HEIGHT,
        max_steps=4,
        setup=setup,
        check=check,
        oracle=oracle,
        settle_grace_s=0.0,
        first_click_targets=targets,
        milestones=(Milestone("touched", 0.4, touched),),
    )

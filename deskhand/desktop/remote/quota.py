"""Waiting for a quota. Invariant: work that is refused for want of room waits and is never lost, and however much of it waits, one
request at a time asks whether there is room again.

A `Gate` belongs to an endpoint and a token; its `desktops` are a gate of their own, so that a full quota of desktops does not stop
the work on those that are there. While a gate is shut, work queues in order; when the time has come, the first of the queue tries.
What it learns moves the bound on desktops held at a time: down by a quarter when one was refused, up by one for each that
was granted (AIMD). `Retry-After` is kept to; without it the pauses grow from 1 to 60 s, drawn at random up to that. A `ParkingLot`
has the gates of a process; with a file, what it knows survives the process, and others can read there what is parked.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import time
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import structlog

from deskhand import pausable_timeout
from deskhand.desktop.remote.quota_errors import QuotaExceeded, QuotaSignal

log = structlog.get_logger()
Result = TypeVar("Result")

LONGEST_PAUSE_S = 60.0
SHORTEST_PAUSE_S = 1.0
DECREASE = 0.75
WARN_S = 15 * 60.0
FILE = "quota.json"
"""In a run's folder: what is known of quotas, what is parked, and the seconds that were parked."""


@dataclass(frozen=True)
class Clock:
    """Where time comes from; tests have their own. `now` counts seconds, `wall` is seconds since 1970."""

    now: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep


@dataclass(eq=False)
class _Place:
    """One that waits. `since` by the gate's clock."""

    since: float
    waits_since: float | None = None
    turn: asyncio.Event = field(default_factory=asyncio.Event)


class QuotaGate:
    """Admits work to one endpoint with one token. Made by `ParkingLot.gate`.

    `desktops` is the gate for taking desktops, which counts those that are held (`released` takes one off).
    """

    def __init__(self, name: str, quota: QuotaManager, requests: QuotaGate | None = None) -> None:
        self.name = name
        self._requests = requests
        self.desktops: QuotaGate = self if requests is not None else QuotaGate(f"{name} (desktops)", quota, self)
        self.held = 0
        """Desktops that are held now."""
        self.bound: float | None = None
        """Most desktops to hold at a time; None until something was refused. Beyond it one a pause is tried for."""
        self.closed_until: float | None = None
        self.reason = ""
        self.refusals = 0
        self.tries = 0
        """Requests that asked whether there is room again."""
        self._manager = quota
        self._places: deque[_Place] = deque()
        self._asker: _Place | None = None
        self._in_a_row = 0
        self._pause_s = SHORTEST_PAUSE_S
        self._beyond_at = 0.0
        """When the next desktop beyond the bound may be tried for."""
        self._warned = 0
        self._moved = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None

    @property
    def num_waiting(self) -> int:
        return len(self._places)

    async def run(self, attempt: Callable[[], Awaitable[Result]]) -> Result:
        """What `attempt` gives, which is called again, when it is its turn, each time that it raised `AtCapacity`."""
        place: _Place | None = None
        try:
            while True:
                if place is not None or self._places or self._shut_until() is not None or self._is_full:
                    place = place or self._queue()
                    await self._wait(place)
                try:
                    result = await attempt()
                except QuotaExceeded as refusal:
                    place = place or self._queue()
                    self._refused(refusal.capacity)
                    continue
                self._granted(opens=place is not None)
                return result
        finally:
            if place is not None:
                self._leave(place)

    def released(self) -> None:
        """A desktop is no longer held."""
        self.held = max(0, self.held - 1)
        self._wake()

    @property
    def _is_full(self) -> bool:
        return self._requests is not None and self.bound is not None and self.held >= max(1, int(self.bound))

    def _shut_until(self) -> float | None:
        """Until when nobody may try; who takes a desktop waits, a little longer, for those who wait to send anything at all."""
        if self._requests is None or self._requests.closed_until is None:
            return self.closed_until
        return max(
            self.closed_until or 0.0,
            self._requests.closed_until + (SHORTEST_PAUSE_S if self._requests.num_waiting else 0.0),
        )

    def _queue(self) -> _Place:
        place = _Place(self._manager.clock.now())
        self._places.append(place)
        if self._keeper is None or self._keeper.done():
            self._keeper = asyncio.create_task(self._keep())
        self._manager.changed()
        return place

    async def _wait(self, place: _Place) -> None:
        place.turn.clear()
        if self._asker is place:
            self._asker = None
        self._wake()
        began = place.waits_since = self._manager.clock.now()
        try:
            with pausable_timeout.pause_timeouts():
                await place.turn.wait()
        finally:
            place.waits_since = None
            self._manager.parked_s[self.reason or "bound"] += self._manager.clock.now() - began

    def waiting_s(self) -> float:
        """Seconds that those have waited who wait now, since they last asked."""
        now = self._manager.clock.now()
        return sum(now - place.waits_since for place in self._places if place.waits_since is not None)

    def _leave(self, place: _Place) -> None:
        self._places.remove(place)
        if self._asker is place:
            self._asker = None
        self._wake()
        self._manager.changed()

    def _next(self) -> tuple[_Place | None, float]:
        """Who may try next, and when."""
        now = self._manager.clock.now()
        if self._asker is not None or not self._places:
            return None, now
        shut_until = self._shut_until()
        return self._places[0], shut_until if shut_until is not None else self._beyond_at if self._is_full else now

    def _wake(self) -> None:
        """Let the next of the queue try if it is time; something has changed."""
        self._call()
        self._moved.set()

    def _call(self) -> None:
        place, due = self._next()
        if place is not None and due <= self._manager.clock.now():
            self._asker = place
            self.tries += 1
            place.turn.set()

    async def _keep(self) -> None:
        """Wakes those that wait when their time comes, and warns of long waiting."""
        clock = self._manager.clock
        while self._places:
            self._moved.clear()
            self._call()
            self._warn(clock.now() - self._places[0].since)
            place, due = self._next()
            if place is None:
                await self._moved.wait()
            else:
                await self._until(min(max(due - clock.now(), 0.001), WARN_S))
        self._warned = 0

    async def _until(self, seconds: float) -> None:
        """So long, or until something has changed."""
        waiting = [asyncio.ensure_future(self._manager.clock.sleep(seconds)), asyncio.ensure_future(self._moved.wait())]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waiting:
                each.cancel()

    def _warn(self, waited_s: float) -> None:
        if waited_s >= WARN_S * (self._warned + 1):
            self._warned = int(waited_s // WARN_S)
            told = {
                "endpoint": self.name,
                "parked": self.num_waiting,
                "minutes": round(waited_s / 60),
                "reason": self.reason,
            }
            log.warning("parking.long", **told)

    def _refused(self, capacity: QuotaSignal) -> None:
        now, wait_s = self._manager.clock.now(), capacity.retry_after_s
        self.refusals += 1
        self.reason = capacity.reason
        if self.closed_until is not None and now < self.closed_until:  # it was under way when the gate was shut
            self.closed_until = max(self.closed_until, now + (wait_s or 0.0))
            return
        if self.closed_until is None and self._requests is not None:
            self.bound = max(1.0, self.held * DECREASE)
        if wait_s is None:
            most = min(LONGEST_PAUSE_S, SHORTEST_PAUSE_S * 2**self._in_a_row)
            self._pause_s = self._manager.random.uniform(SHORTEST_PAUSE_S / 2, most)
            self._in_a_row = min(self._in_a_row + 1, 10)
        else:
            self._pause_s = max(0.05, wait_s * self._manager.random.uniform(1.0, 1.05))
        self.closed_until = now + self._pause_s
        log.info(
            "parking.shut",
            endpoint=self.name,
            reason=self.reason,
            pause_s=round(self._pause_s, 2),
            parked=self.num_waiting,
        )
        self._manager.changed(save=True)

    def _granted(self, opens: bool) -> None:
        """One was granted; only one that was let try opens the gate, not one that was under way when it was shut."""
        opened = opens and self.closed_until is not None
        if opens:
            self.closed_until, self._in_a_row = None, 0
        if self._requests is not None:
            self.held += 1
            self._beyond_at = self._manager.clock.now() + self._pause_s
            if self.bound is not None:
                self.bound += 1
        if opened:
            if self._requests is None:
                self.desktops._wake()
            log.info("parking.open", endpoint=self.name, parked=self.num_waiting)
            self._manager.changed(save=True)

    def seen(self) -> dict[str, Any]:
        """For people and for JSON: seconds, counts and the reason."""
        clock = self._manager.clock
        now = clock.now()
        return {
            "endpoint": self.name,
            "parked": self.num_waiting,
            "held": self.held,
            "bound": None if self.bound is None else int(self.bound),
            "reason": self.reason if self.closed_until is not None or self._places else "",
            "since_s": round(now - self._places[0].since, 1) if self._places else 0.0,
            "next_try_s": round(max(0.0, self.closed_until - now), 1) if self.closed_until is not None else 0.0,
            "refusals": self.refusals,
        }


class QuotaManager:
    """The gates of a process. `file` keeps what is known of them over restarts; `clock` and `seed` are for tests."""

    def __init__(self, file: Path | None = None, *, clock: Clock | None = None, seed: int | None = None) -> None:
        self.clock = clock or Clock()
        self.random = random.Random(seed)
        self.parked_s: defaultdict[str, float] = defaultdict(float)
        """Seconds that work was parked, by reason, summed over all work."""
        self._file = file
        self._gates: dict[str, QuotaGate] = {}
        self._stored: dict[str, Any] = _read(file)
        self._listeners: list[Callable[[], None]] = []
        self._saved_any = False
        """Whether the file says that something is parked."""
        before = self._stored.pop("parked_s", None)
        for reason, seconds in before.items() if isinstance(before, dict) else ():
            self.parked_s[reason] += seconds if isinstance(seconds, (int, float)) else 0.0

    def gate(self, endpoint: str, token: str | None = None) -> QuotaGate:
        """The gate of an endpoint and a token, always the same one."""
        key = f"{endpoint} {hashlib.sha256(f'{endpoint} {token or str()}'.encode()).hexdigest()[:12]}"
        if key not in self._gates:
            gate = QuotaGate(endpoint, self)
            for name, each in ((key, gate), (f"{key} desktops", gate.desktops)):
                self._gates[name] = each
                if isinstance(kept := self._stored.get(name), dict):
                    self._restore(each, kept)
        return self._gates[key]

    def _restore(self, gate: QuotaGate, kept: dict[str, Any]) -> None:
        gate.bound = kept.get("bound")
        gate.reason = str(kept.get("reason", ""))
        gate.refusals = int(kept.get("refusals", 0))
        left_s = float(kept.get("shut_until") or 0.0) - self.clock.wall()
        if left_s > 0:
            gate.closed_until = self.clock.now() + min(left_s, 24 * 3600.0)

    @property
    def num_waiting(self) -> int:
        return sum(gate.num_waiting for gate in self._gates.values())

    @property
    def total_s(self) -> float:
        """Seconds that work was parked so far, summed over all work, with what is parked now; of earlier processes too."""
        return sum(self._total_by_reason().values())

    def _total_by_reason(self) -> dict[str, float]:
        found = defaultdict(float, self.parked_s)
        for gate in self._gates.values():
            if (waiting_s := gate.waiting_s()) > 0:
                found[gate.reason or "bound"] += waiting_s
        return dict(found)

    def snapshot(self) -> list[dict[str, Any]]:
        """What is parked at which endpoint, and why; gates at which nothing ever waited are left out."""
        return [gate.seen() for gate in self._gates.values() if gate.refusals or gate.num_waiting]

    def line(self) -> str:
        """One line for people; "" when nothing is parked."""
        return _line(self.snapshot())

    def listen(self, told: Callable[[], None]) -> None:
        """Call `told` whenever something was parked or goes on."""
        self._listeners.append(told)

    def changed(self, save: bool = False) -> None:
        if self._file is not None and (save or self._saved_any != bool(self.num_waiting)):
            self._save(self._file)
        for told in self._listeners:
            told()

    def _save(self, file: Path) -> None:
        lag_s = self.clock.wall() - self.clock.now()
        kept = self._stored | {
            key: {
                "bound": gate.bound,
                "reason": gate.reason,
                "refusals": gate.refusals,
                "shut_until": gate.closed_until + lag_s if gate.closed_until is not None else None,
            }
            for key, gate in self._gates.items()
        }
        kept |= {"parked_s": self._total_by_reason(), "now": {"written": self.clock.wall(), "gates": self.snapshot()}}
        self._saved_any = bool(self.num_waiting)
        partial = file.with_name(file.name + ".part")
        try:
            partial.write_text(json.dumps(kept), encoding="utf-8")
            os.replace(partial, file)
        except (
            OSError
        ) as error:  # to ask before its time after a new start costs a refusal; to lose what waits costs work
            log.warning("parking.not_written", file=str(file), error=error.strerror)


def _line(seen: list[dict[str, Any]]) -> str:
    parts = [
        f"{each['parked']} parked at {each['endpoint']} ({each['reason'] or 'its bound'}, {each['since_s']:.0f} s; "
        f"next try in {each['next_try_s']:.0f} s)"
        for each in seen
        if each["parked"]
    ]
    return "; ".join(parts)


def saved_summary(file: Path) -> str:
    """What a file of another process says is parked, and when that was written; "" when nothing is."""
    try:
        now = _read(file)["now"]
        found = _line(now["gates"])
        written = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(now["written"]))
    except (KeyError, TypeError, ValueError):
        return ""
    return f"{found}, as of {written}" if found else ""


def _read(file: Path | None) -> dict[str, Any]:
    """What a file says; one that cannot be read says nothing, which costs a refused request."""
    try:
        found = json.loads(file.read_text(encoding="utf-8")) if file is not None else {}
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}

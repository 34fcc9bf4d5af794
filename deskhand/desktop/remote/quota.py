"""Waiting for quotas: refused work is queued, and one request at a time probes whether there is room again.

`RetryingClient` sends its requests through a `QuotaGate`; a `QuotaManager` has all gates of a process and saves their
state to a file (`quota_file`), which `deskhand report` also reads.

A gate belongs to an endpoint and a token. Desktops have a gate of their own, so that an exhausted desktop quota does
not block requests to existing ones. While a gate is closed, work queues in order; when the pause ends, the first
waiter tries. The limit of concurrent desktops is adapted by AIMD: reduced by a quarter on refusal, increased by one
on each grant. `Retry-After` is honored; without it, and while shorter waits than a second do not suffice, pauses grow
from 1 to 60 s with jitter.
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
from deskhand.desktop.remote import quota_file
from deskhand.desktop.remote.quota_errors import QuotaExceeded, QuotaSignal

log = structlog.get_logger()
Result = TypeVar("Result")

MAX_PAUSE_S = 60.0
MIN_PAUSE_S = 1.0
MIN_RETRY_S = 0.05
DECREASE = 0.75
WARN_S = 15 * 60.0


@dataclass(frozen=True)
class Clock:
    """Source of time; tests replace it. `now` is monotonic seconds, `wall` seconds since 1970."""

    now: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep


@dataclass(eq=False)
class _Waiter:
    """Queued work. `since` is by the manager's clock."""

    since: float
    waits_since: float | None = None
    turn: asyncio.Event = field(default_factory=asyncio.Event)


class QuotaGate:
    """Admits work to one endpoint with one token. Created by `QuotaManager.gate`.

    `desktops` is the gate for acquiring desktops; it counts held desktops (`released` subtracts one).
    """

    def __init__(self, name: str, manager: QuotaManager, requests: QuotaGate | None = None) -> None:
        self.name = name
        self._requests = requests
        self.desktops: QuotaGate = self if requests is not None else QuotaGate(f"{name} (desktops)", manager, self)
        self.held = 0
        """Desktops held now."""
        self.max_held: float | None = None
        """Learned limit of concurrent desktops, None before a refusal. One beyond it is probed per pause."""
        self.closed_until: float | None = None
        self.reason = ""
        self.refusals = 0
        self.tries = 0
        """Requests that probed whether there is room again."""
        self._manager = manager
        self._waiters: deque[_Waiter] = deque()
        self._active_waiter: _Waiter | None = None
        self._num_consecutive, self._pause_s = 0, MIN_PAUSE_S
        self._next_probe_at = 0.0
        """When a desktop beyond the limit may be requested."""
        self._num_warnings = 0
        self._changed = asyncio.Event()
        self._wake_task: asyncio.Task[None] | None = None

    @property
    def num_waiting(self) -> int:
        return len(self._waiters)

    async def run(self, attempt: Callable[[], Awaitable[Result]]) -> Result:
        """Return the result of `attempt`, calling it again in turn each time it raises `QuotaExceeded`."""
        waiter: _Waiter | None = None
        try:
            while True:
                if waiter is not None or self._waiters or self._blocked_until() is not None or self._is_full:
                    waiter = waiter or self._enqueue()
                    await self._wait(waiter)
                try:
                    result = await attempt()
                except QuotaExceeded as error:
                    waiter = waiter or self._enqueue()
                    self._on_refused(error.signal)
                    continue
                self._on_granted(reopens=waiter is not None)
                return result
        finally:
            if waiter is not None:
                self._dequeue(waiter)

    def released(self) -> None:
        """Record that a desktop is no longer held."""
        self.held = max(0, self.held - 1)
        self._wake()

    @property
    def _is_full(self) -> bool:
        return self._requests is not None and self.max_held is not None and self.held >= max(1, int(self.max_held))

    def _blocked_until(self) -> float | None:
        """Acquisitions also wait, slightly longer, for a closed gate of requests."""
        if self._requests is None or self._requests.closed_until is None:
            return self.closed_until
        return max(
            self.closed_until or 0.0, self._requests.closed_until + (MIN_PAUSE_S if self._requests.num_waiting else 0.0)
        )

    def _enqueue(self) -> _Waiter:
        waiter = _Waiter(self._manager.clock.now())
        self._waiters.append(waiter)
        if self._wake_task is None or self._wake_task.done():
            self._wake_task = asyncio.create_task(self._wake_waiters())
        self._manager.changed()
        return waiter

    async def _wait(self, waiter: _Waiter) -> None:
        waiter.turn.clear()
        if self._active_waiter is waiter:
            self._active_waiter = None
        self._wake()
        began = waiter.waits_since = self._manager.clock.now()
        try:
            with pausable_timeout.pause_timeouts():
                await waiter.turn.wait()
        finally:
            waiter.waits_since = None
            self._manager.wait_s[self.reason or "limit"] += self._manager.clock.now() - began

    def waiting_s(self) -> float:
        """Return the seconds that current waiters have waited since their last attempt."""
        now = self._manager.clock.now()
        return sum(now - waiter.waits_since for waiter in self._waiters if waiter.waits_since is not None)

    def _dequeue(self, waiter: _Waiter) -> None:
        self._waiters.remove(waiter)
        if self._active_waiter is waiter:
            self._active_waiter = None
        self._wake()
        self._manager.changed()

    def _next(self) -> tuple[_Waiter | None, float]:
        """Return the next waiter and when it may try."""
        now = self._manager.clock.now()
        if self._active_waiter is not None or not self._waiters:
            return None, now
        blocked_until = self._blocked_until()
        if blocked_until is None:
            blocked_until = self._next_probe_at if self._is_full else now
        return self._waiters[0], blocked_until

    def _wake(self) -> None:
        self._admit_next()
        self._changed.set()

    def _admit_next(self) -> None:
        waiter, due = self._next()
        if waiter is not None and due <= self._manager.clock.now():
            self._active_waiter = waiter
            self.tries += 1
            waiter.turn.set()

    async def _wake_waiters(self) -> None:
        """Wake waiters when their time comes, and warn about long waits."""
        clock = self._manager.clock
        while self._waiters:
            self._changed.clear()
            self._admit_next()
            self._warn(clock.now() - self._waiters[0].since)
            waiter, due = self._next()
            if waiter is None:
                await self._changed.wait()
            else:
                await self._sleep_or_change(min(max(due - clock.now(), 0.001), WARN_S))
        self._num_warnings = 0

    async def _sleep_or_change(self, seconds: float) -> None:
        waiting = [asyncio.ensure_future(each) for each in (self._manager.clock.sleep(seconds), self._changed.wait())]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waiting:
                each.cancel()

    def _warn(self, waited_s: float) -> None:
        if waited_s >= WARN_S * (self._num_warnings + 1):
            self._num_warnings = int(waited_s // WARN_S)
            state = {"endpoint": self.name, "waiting": self.num_waiting, "reason": self.reason}
            log.warning("quota.waiting_long", minutes=round(waited_s / 60), **state)

    def _on_refused(self, signal: QuotaSignal) -> None:
        now, wait_s = self._manager.clock.now(), signal.retry_after_s
        self.refusals += 1
        self.reason = signal.reason
        if self.closed_until is not None and now < self.closed_until:  # sent before the gate closed
            self.closed_until = max(self.closed_until, now + (wait_s or 0.0))
            return
        if self.closed_until is None and self._requests is not None:
            self.max_held = max(1.0, self.held * DECREASE)
        self._pause_s = self._next_pause_s(wait_s)
        self.closed_until = now + self._pause_s
        state = {"endpoint": self.name, "waiting": self.num_waiting, "reason": self.reason}
        log.info("quota.closed", pause_s=round(self._pause_s, 2), **state)
        self._manager.changed(save=True)

    def _next_pause_s(self, wait_s: float | None) -> float:
        """Return the pause after a refusal, at least `wait_s`; it grows if that is less than `MIN_PAUSE_S` again."""
        if wait_s is not None and wait_s >= MIN_PAUSE_S:
            return wait_s * self._manager.random.uniform(1.0, 1.05)
        max_pause_s = min(MAX_PAUSE_S, MIN_PAUSE_S * 2**self._num_consecutive)
        pause_s = self._manager.random.uniform(MIN_PAUSE_S / 2, max_pause_s)
        is_first = self._num_consecutive == 0
        self._num_consecutive = min(self._num_consecutive + 1, 10)
        if wait_s is None:
            return pause_s
        return max(wait_s, MIN_RETRY_S) if is_first else max(wait_s, pause_s)

    def _on_granted(self, reopens: bool) -> None:
        """Only an admitted waiter reopens the gate; a request sent before it closed does not."""
        was_closed = reopens and self.closed_until is not None
        if reopens:
            self.closed_until, self._num_consecutive = None, 0
        if self._requests is not None:
            self.held += 1
            self._next_probe_at = self._manager.clock.now() + self._pause_s
            if self.max_held is not None:
                self.max_held += 1
        if was_closed:
            if self._requests is None:
                self.desktops._wake()
            log.info("quota.opened", endpoint=self.name, waiting=self.num_waiting)
            self._manager.changed(save=True)

    def snapshot(self) -> dict[str, Any]:
        """Return the state as JSON: seconds, counts and the reason."""
        clock = self._manager.clock
        now = clock.now()
        return {
            "endpoint": self.name,
            "waiting": self.num_waiting,
            "held": self.held,
            "max_held": None if self.max_held is None else int(self.max_held),
            "reason": self.reason if self.closed_until is not None or self._waiters else "",
            "since_s": round(now - self._waiters[0].since, 1) if self._waiters else 0.0,
            "next_try_s": round(max(0.0, self.closed_until - now), 1) if self.closed_until is not None else 0.0,
            "refusals": self.refusals,
        }


class QuotaManager:
    """The gates of a process. `file` persists their state; `clock` and `seed` are for tests."""

    def __init__(self, file: Path | None = None, *, clock: Clock | None = None, seed: int | None = None) -> None:
        self.clock = clock or Clock()
        self.random = random.Random(seed)
        self.wait_s: defaultdict[str, float] = defaultdict(float)
        """Seconds waited, by reason, summed over all work."""
        self._file = file
        self._gates: dict[str, QuotaGate] = {}
        self._stored = quota_file.read_state(file)
        self._listeners: list[Callable[[], None]] = []
        self._saved_waiting = False
        """Whether the saved state contains waiting work."""
        self.wait_s.update(self._stored.wait_s)

    def gate(self, endpoint: str, token: str | None = None) -> QuotaGate:
        """Return the gate of an endpoint and a token, always the same object."""
        key = f"{endpoint} {hashlib.sha256(f'{endpoint} {token or str()}'.encode()).hexdigest()[:12]}"
        if key not in self._gates:
            gate = QuotaGate(endpoint, self)
            for name, each in ((key, gate), (f"{key} desktops", gate.desktops)):
                self._gates[name] = each
                if (state := self._stored.gates.get(name)) is not None:
                    self._restore(each, state)
        return self._gates[key]

    def _restore(self, gate: QuotaGate, state: quota_file.GateState) -> None:
        gate.max_held, gate.reason, gate.refusals = state.max_held, state.reason, state.refusals
        left_s = (state.closed_until or 0.0) - self.clock.wall()
        if left_s > 0:
            gate.closed_until = self.clock.now() + min(left_s, 24 * 3600.0)

    @property
    def num_waiting(self) -> int:
        return sum(gate.num_waiting for gate in self._gates.values())

    @property
    def total_s(self) -> float:
        """Seconds waited so far, summed over all work, including current waiters and earlier processes."""
        return sum(self._total_by_reason().values())

    def _total_by_reason(self) -> dict[str, float]:
        found = defaultdict(float, self.wait_s)
        for gate in self._gates.values():
            if (waiting_s := gate.waiting_s()) > 0:
                found[gate.reason or "limit"] += waiting_s
        return dict(found)

    def snapshot(self) -> list[dict[str, Any]]:
        """Return the state of every gate that ever refused or queued work."""
        return [gate.snapshot() for gate in self._gates.values() if gate.refusals or gate.num_waiting]

    def summary(self) -> str:
        """Return one line for people, "" if nothing is waiting."""
        return quota_file.format_summary(self.snapshot())

    def listen(self, on_change: Callable[[], None]) -> None:
        """Call `on_change` whenever work starts or stops waiting."""
        self._listeners.append(on_change)

    def changed(self, save: bool = False) -> None:
        if self._file is not None and (save or self._saved_waiting != bool(self.num_waiting)):
            self._save(self._file)
        for on_change in self._listeners:
            on_change()

    def _save(self, file: Path) -> None:
        lag_s = self.clock.wall() - self.clock.now()
        state: dict[str, Any] = {key: each.model_dump() for key, each in self._stored.gates.items()} | {
            key: {
                "max_held": gate.max_held,
                "reason": gate.reason,
                "refusals": gate.refusals,
                "closed_until": gate.closed_until + lag_s if gate.closed_until is not None else None,
            }
            for key, gate in self._gates.items()
        }
        state |= {"wait_s": self._total_by_reason(), "now": {"written": self.clock.wall(), "gates": self.snapshot()}}
        self._saved_waiting = bool(self.num_waiting)
        partial = file.with_name(file.name + ".part")
        try:
            partial.write_text(json.dumps(state), encoding="utf-8")
            os.replace(partial, file)
        except OSError as error:  # a lost state costs one refused request after a restart; failing here costs work
            log.warning("quota.save_failed", file=str(file), error=error.strerror)

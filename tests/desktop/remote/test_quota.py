"""Waiting for quotas: recognition of refusals, one probe at a time, outside all timeouts."""

from __future__ import annotations

import asyncio
import email.utils
import json
import tracemalloc
import types
from itertools import pairwise

import httpx2
import pytest
from fake_clock import FakeClock
from patience import limit
from starlette.websockets import WebSocketDisconnect

from deskhand import pausable_timeout
from deskhand.config.schema import RemoteTimeouts
from deskhand.desktop.remote.quota import QuotaGate, QuotaManager
from deskhand.desktop.remote.quota_errors import (
    QuotaExceeded,
    QuotaSignal,
    quota_signal_from_close,
    quota_signal_from_error,
    quota_signal_from_reply,
)
from deskhand.desktop.remote.quota_file import saved_summary
from deskhand.desktop.remote.retrying_client import RetryingClient
from deskhand.errors import DeliveryUnknown, InfrastructureError

NOW = 1_800_000_000.0


def date(seconds: float) -> str:
    """Return the HTTP date `seconds` after `NOW`."""
    return email.utils.formatdate(NOW + seconds, usegmt=True)


def reply(status: int, headers: dict[str, str] | None = None, **body) -> httpx2.Response:
    return httpx2.Response(status, headers=headers, **body)


@pytest.mark.parametrize(
    ("answer", "acquires", "found"),
    [
        (reply(429), False, QuotaSignal("429")),
        (reply(429, {"retry-after": "7"}), False, QuotaSignal("429", 7)),
        (reply(429, {"Retry-After": "0.5"}), False, QuotaSignal("429", 0.5)),
        (reply(429, {"retry-after": email.utils.formatdate(NOW + 90, usegmt=True)}), False, QuotaSignal("429", 90)),
        (reply(429, {"retry-after": email.utils.formatdate(NOW - 90, usegmt=True)}), False, QuotaSignal("429", 0)),
        (reply(429, {"retry-after-sandbox-create": "12", "retry-after-ms": "500"}), True, QuotaSignal("429", 12)),
        (reply(429, {"retry-after": "soon"}), True, QuotaSignal("429")),
        (reply(429, {"retry-after": "nan"}), True, QuotaSignal("429")),
        (reply(429, {"retry-after": "-3"}), True, QuotaSignal("429", 0)),
        (reply(429, {"retry-after": "9e99"}), True, QuotaSignal("429")),
        (reply(429, {"retry-after": "inf"}), False, QuotaSignal("429")),
        (reply(429, {"retry-after": "-1e400"}), False, QuotaSignal("429")),
        (reply(429, {"retry-after": "86400"}), False, QuotaSignal("429", 24 * 3600)),
        (reply(429, {"retry-after": "Fri, 31 Dec 9999 23:59:59 GMT"}), False, QuotaSignal("429")),
        (reply(429, {"retry-after": "Fri, 32 Dec 2026 23:59:59 GMT"}), False, QuotaSignal("429")),
        (reply(429, {"retry-after": date(2), "date": date(0)}), False, QuotaSignal("429", 2)),
        (reply(429, {"retry-after": date(3602), "date": date(3600)}), False, QuotaSignal("429", 2)),
        (reply(429, {"retry-after": date(-3598), "date": date(-3600)}), False, QuotaSignal("429", 2)),
        (reply(429, {"retry-after": date(2), "date": "today"}), False, QuotaSignal("429", 2)),
        (httpx2.Response(429, headers=[("retry-after", "3"), ("retry-after", "5")]), False, QuotaSignal("429", 5)),
        (reply(200, json={"code": 429, "message": "quota"}), True, QuotaSignal("429")),
        (reply(500, json={"code": 429, "message": "quota"}), True, QuotaSignal("429")),
        (reply(503), True, QuotaSignal("503")),
        (reply(503), False, None),
        (reply(503, {"retry-after": "3"}), False, QuotaSignal("503", 3)),
        (reply(400, json={"detail": "No available VMs"}), True, QuotaSignal("400 full")),
        (reply(400, json={"detail": "unknown key"}), True, None),
        (reply(500, json={"message": "the program said: quota exceeded"}), False, None),
        (reply(402, json={"status": "pending"}), True, QuotaSignal("402")),
        (reply(402), False, None),
        (reply(500, text="boom"), True, None),
        (reply(200, json={"code": 0}), True, None),
        (reply(200, content=b"\x89PNG 429 no available vms"), False, None),
        (reply(404, json=[429]), True, None),
    ],
)
def test_quota_replies_of_all_providers_are_recognized(answer, acquires, found):
    assert quota_signal_from_reply(answer, acquires=acquires, now_s=NOW) == found


def test_quota_refusals_in_websocket_closes_and_sdk_errors_are_recognized():
    assert quota_signal_from_close(1013, "") == QuotaSignal("websocket")
    assert quota_signal_from_close(4000, "CAPACITY_REACHED; retry after 4") == QuotaSignal("websocket", 4)
    assert quota_signal_from_close(1011, "internal error") is None

    class Closed(Exception):
        """As websockets tells it; Starlette has code and reason on the error itself."""

        def __init__(self, code: int, reason: str) -> None:
            self.rcvd = types.SimpleNamespace(code=code, reason=reason)

    assert quota_signal_from_error(Closed(4000, "CAPACITY_REACHED")) == QuotaSignal("websocket")
    assert quota_signal_from_error(WebSocketDisconnect(1013, "")) == QuotaSignal("websocket")
    assert quota_signal_from_error(Closed(1006, "")) is None

    class RateLimitError(Exception):
        retry_after = 3

    class Limited(Exception):
        def __init__(self) -> None:
            self.response = reply(429, {"retry-after": "11"})

    class Numbered(Exception):
        status_code = 429

    assert quota_signal_from_error(RateLimitError()) == QuotaSignal("RateLimitError", 3)
    assert quota_signal_from_error(Limited()) == QuotaSignal("429", 11)
    assert quota_signal_from_error(Numbered()) == QuotaSignal("429")
    assert quota_signal_from_error(ValueError("429")) is None
    assert quota_signal_from_error(QuotaExceeded(QuotaSignal("x", 1), "a")) == QuotaSignal("x", 1)


class Provider:
    """Gives `room` desktops; refuses beyond, and says `retry_after`. `log` has the times of requests."""

    def __init__(self, time: FakeClock, room: int, retry_after: float | None = None) -> None:
        self.time, self.room, self.retry_after = time, room, retry_after
        self.given = 0
        self.log: list[tuple[float, bool]] = []

    async def take(self) -> int:
        granted = self.given < self.room
        self.given += granted
        number = self.given
        self.log.append((self.time.time, granted))
        await asyncio.sleep(0)
        if not granted:
            raise QuotaExceeded(QuotaSignal("429", self.retry_after), "take")
        return number


@pytest.fixture
def time() -> FakeClock:
    return FakeClock()


@pytest.fixture
def lot(time: FakeClock) -> QuotaManager:
    return QuotaManager(clock=time.clock, seed=1)


def taking(gate: QuotaGate, provider: Provider, count: int) -> list[asyncio.Task[int]]:
    return [asyncio.create_task(gate.desktops.run(provider.take)) for _ in range(count)]


@pytest.mark.parametrize("retry_after", [None, 30.0])
async def test_refused_work_stays_in_order_and_one_request_probes_at_a_time(retry_after):
    time = FakeClock()
    provider = Provider(time, 0, retry_after)
    lot = QuotaManager(clock=time.clock, seed=1)
    tasks = taking(lot.gate("http://a", "t"), provider, 100)
    await time.pass_(60)
    first = len(provider.log)
    tracemalloc.start()
    for _ in range(24):
        await time.pass_(3600)
        assert lot.num_waiting == 100
    assert tracemalloc.get_traced_memory()[0] < 2**20, "memory is flat"
    tracemalloc.stop()
    asked = [moment for moment, _ in provider.log[first:]]
    shortest = retry_after or 0.5
    assert all(later - earlier >= shortest for earlier, later in pairwise(asked)), "one probe an interval"
    assert len(asked) >= 24 * 3600 / (retry_after * 1.06 if retry_after else 61)
    assert not any(task.done() for task in tasks)
    provider.room = 100
    last = time.time
    await time.pass_(61 if retry_after is None else retry_after * 1.1)
    assert provider.given >= 1, "the first goes on within Retry-After and a tenth"
    for _ in range(400):
        await time.pass_(10)
    assert sorted(task.result() for task in tasks) == list(range(1, 101)), "and all of them in the end"
    assert lot.num_waiting == 0
    assert lot.wait_s["429"] > 100 * 24 * 3600
    assert time.time > last


@pytest.mark.parametrize("wait_s", [0.0, 0.001, 0.4, None])
async def test_waits_that_do_not_suffice_grow(time, lot, wait_s):
    """Retry-After of 0, below zero or of a date that has passed would be a busy loop."""
    provider = Provider(time, 0, wait_s)
    tasks = [asyncio.create_task(lot.gate("http://a").run(provider.take)) for _ in range(8)]
    await time.pass_(60)
    first = len(provider.log) - 8
    assert first <= 12, "the eight that came first, and then a few"
    await time.pass_(600)
    assert len(provider.log) - 8 - first <= 40
    provider.room = 8
    await time.pass_(61)
    assert provider.given >= 1, "no pause is longer than a minute"
    for task in tasks:
        task.cancel()


async def test_a_first_short_wait_is_honored_as_it_is(time, lot):
    provider = Provider(time, 0, 0.2)
    task = asyncio.create_task(lot.gate("http://a").run(provider.take))
    await time.pass_(0.1)
    provider.room = 1
    await time.pass_(0.15)
    assert task.done()


async def test_a_full_quota_does_not_block_requests_to_existing_desktops(time, lot):
    gate, provider = lot.gate("http://a", "t"), Provider(time, 2, 20.0)
    tasks = taking(gate, provider, 5)
    await time.pass_(1)
    assert [task.done() for task in tasks] == [True, True, False, False, False]

    async def step() -> str:
        return "stepped"

    assert await gate.run(step) == "stepped"
    provider.given -= 1
    gate.desktops.released()
    await time.pass_(22)
    assert sum(task.done() for task in tasks) == 3
    for task in tasks:
        task.cancel()
    await time.pass_(1)
    assert lot.num_waiting == 0


async def test_the_limit_of_desktops_falls_on_refusal_and_rises_by_one(time, lot):
    gate, provider = lot.gate("http://a", "t").desktops, Provider(time, 8, 10.0)
    tasks = taking(gate.desktops, provider, 12)
    await time.pass_(1)
    assert (gate.held, gate.max_held, gate.num_waiting) == (8, 6.0, 4)
    for _ in range(4):
        gate.released()
        provider.given -= 1
    await time.pass_(11)
    assert gate.held == 8
    assert gate.max_held == 10
    assert all(task.done() for task in tasks)


async def test_a_request_sent_before_the_gate_closed_does_not_open_it(time, lot):
    gate, slow = lot.gate("http://a").desktops, asyncio.Event()

    async def late() -> str:
        await slow.wait()
        return "late"

    under_way = asyncio.create_task(gate.run(late))
    await time.pass_(1)
    provider = Provider(time, 0, 100.0)
    (refused,) = taking(gate, provider, 1)
    await time.pass_(1)
    slow.set()
    await time.pass_(1)
    assert under_way.result() == "late"
    assert gate.held == 1
    await time.pass_(90)
    assert len(provider.log) == 1, "Retry-After is kept to"
    refused.cancel()


async def test_a_short_pause_after_a_long_one_is_honored(time, lot):
    gate, provider = lot.gate("http://a"), Provider(time, 0, 800.0)
    first = asyncio.create_task(gate.run(provider.take))
    await time.pass_(1)
    gate.closed_until, provider.retry_after = None, 2.0  # it opened meanwhile
    second = asyncio.create_task(gate.run(provider.take))
    await time.pass_(1)
    provider.room = 2
    await time.pass_(10)
    assert first.done()
    assert second.done()


async def test_two_tokens_have_two_queues_and_no_token_is_shown(time, lot):
    full, free = Provider(time, 0), Provider(time, 9)
    waiting, (going,) = (
        taking(lot.gate("http://a", "secret-one"), full, 2),
        taking(lot.gate("http://a", "secret-two"), free, 1),
    )
    await time.pass_(1)
    assert going.done()
    assert lot.gate("http://a", "secret-one") is lot.gate("http://a", "secret-one")
    assert "2 waiting at http://a" in lot.summary()
    assert "secret" not in json.dumps(lot.snapshot()) + lot.summary()
    for task in waiting:
        task.cancel()
    await time.pass_(1)
    assert lot.summary() == ""


async def test_quota_state_survives_the_process(tmp_path):
    time = FakeClock()
    file = tmp_path / "quota.json"
    lot = QuotaManager(file, clock=time.clock, seed=1)
    provider = Provider(time, 0, 600.0)
    (task,) = taking(lot.gate("http://a", "secret"), provider, 1)
    await time.pass_(100)
    assert saved_summary(file).startswith("1 waiting at http://a (desktops) (429, ")
    task.cancel()
    await time.pass_(1)
    assert "secret" not in file.read_text()
    assert saved_summary(file) == "", "nothing is parked any more"
    again = QuotaManager(file, clock=time.clock, seed=1)
    assert again.total_s == pytest.approx(100, abs=1), "what was parked before is in the run's sum"
    (task,) = taking(again.gate("http://a", "secret"), provider, 1)
    await time.pass_(400)
    assert len(provider.log) == 1, "the new process does not ask before the time"
    provider.room = 1
    await time.pass_(200)
    assert task.done()
    assert again.total_s == pytest.approx(615, abs=20)


async def test_a_clock_jump_neither_wakes_nor_forgets_waiters(time, lot):
    provider = Provider(time, 0, 50.0)
    (task,) = taking(lot.gate("http://a"), provider, 1)
    await time.pass_(1)
    for jump in (3600.0, -7200.0):
        time.jump += jump
        await time.pass_(10)
    assert len(provider.log) == 1
    provider.room = 1
    await time.pass_(40)
    assert task.done()


async def test_waiting_for_quota_counts_against_no_timeout():
    short = limit(0.5)
    with pausable_timeout.measure_paused() as meter:
        async with pausable_timeout.pausable_timeout(short), pausable_timeout.pausable_timeout(30 * short):
            with pausable_timeout.pause_timeouts():
                await asyncio.gather(asyncio.sleep(2 * short), asyncio.create_task(nested()))
            await asyncio.sleep(short / 30)
        assert 2 * short <= meter.paused_s < 7 * short
    async with pausable_timeout.pausable_timeout(None):
        with pytest.raises(TimeoutError):
            await late()


async def late() -> None:
    async with pausable_timeout.pausable_timeout(0.1):
        with pausable_timeout.pause_timeouts():
            await asyncio.sleep(0.2)
        await asyncio.sleep(1.0)


async def nested() -> None:
    with pausable_timeout.pause_timeouts():
        await asyncio.sleep(0.1)


async def test_a_long_wait_is_logged_and_continues(capsys, time, lot):
    tasks = taking(lot.gate("http://a"), Provider(time, 0, 60.0), 3)
    await time.pass_(890)
    assert "quota.waiting_long" not in capsys.readouterr().out
    await time.pass_(70)
    assert "quota.waiting_long" in capsys.readouterr().out
    assert not any(task.done() for task in tasks)
    for task in tasks:
        task.cancel()


@pytest.mark.parametrize("parks", [True, False])
async def test_a_refusal_after_a_lost_reply_keeps_the_outcome_unknown(parks):
    answers = ["lost", 429, "away", "away", "away"]

    def answer(request: httpx2.Request) -> httpx2.Response:
        said = answers.pop(0)
        if said == "lost":
            raise httpx2.ReadError("the reply is lost", request=request)
        if said == "away":
            raise httpx2.ConnectError("not delivered", request=request)
        return httpx2.Response(429, headers={"retry-after": "0.01"}, request=request)

    times = RemoteTimeouts(max_attempts=3, initial_backoff_s=0.001)
    link = RetryingClient("http://a.test", timeouts=times, wait_for_quota=parks, transport=httpx2.MockTransport(answer))
    with pytest.raises(DeliveryUnknown):
        await link.send("POST", "/act", repeatable=True, acts=True)
    assert len(answers) == (0 if parks else 2), "what is not parked is sent three times in all"
    answers[:] = [429, "away", "away", "away"] if parks else [429, 429, 429]
    with pytest.raises(InfrastructureError) as error:
        await link.send("POST", "/act", repeatable=True, acts=True)
    assert not isinstance(error.value, DeliveryUnknown), "it was surely not carried out"
    await link.close()


async def test_an_unwritable_quota_file_loses_no_waiting_work(tmp_path):
    time = FakeClock()
    lot = QuotaManager(tmp_path / "gone" / "quota.json", clock=time.clock, seed=1)
    provider = Provider(time, 0, 5.0)
    (task,) = taking(lot.gate("http://a"), provider, 1)
    await time.pass_(1)
    assert not task.done()
    provider.room = 1
    await time.pass_(10)
    assert task.done()
    task.result()

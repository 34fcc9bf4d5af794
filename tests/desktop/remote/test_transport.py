"""What is the same for bridges and sandbox gateways: ids of what acts, errors as themselves, and nothing held that was
not lent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from deskhand.desktop.frame_codec import RemoteLeaseExpired
from deskhand.desktop.remote.retrying_client import RemoteTimeouts, RetryingClient
from deskhand.desktop.remote.sandbox_api import HttpSandboxApi
from deskhand.desktop.remote.server_desktop import ServerPool, ServerTransport
from deskhand.desktop.remote.transport import HttpTransport, Sandbox
from deskhand.errors import AgentError, ConfigError, DeliveryUnknown, InfrastructureError

QUICK = RemoteTimeouts(connect_s=1, read_s=1, max_attempts=3, initial_backoff_s=0.001)
LENT = Sandbox("a", "ready", 60.0, "the-key-of-the-lease", epoch=7, size=(64, 48))
ALIVE = {"id": "a", "state": "ready", "ttl_s": 60.0}
Answer = Callable[[httpx2.Request], httpx2.Response]


def bridge(answer: Answer) -> HttpTransport:
    network = httpx2.MockTransport(answer)
    link = RetryingClient("http://host.test", "the-key", timeouts=QUICK, transport=network)
    return ServerTransport(
        link, lambda key: RetryingClient("http://host.test", key, timeouts=QUICK, gate=link.gate, transport=network)
    )


def gateway(answer: Answer) -> HttpTransport:
    return HttpSandboxApi("http://host.test", "the-key", timeouts=QUICK, transport=httpx2.MockTransport(answer))


BOTH = pytest.mark.parametrize("make", [bridge, gateway])


@BOTH
async def test_reported_errors_are_raised_with_their_class(make):
    answers = iter(
        [
            httpx2.Response(422, json={"error": "agent", "message": "off the screen"}),
            httpx2.Response(403, json={"error": "denied", "message": "a link out"}),
            httpx2.Response(404, json={"error": "not_found", "message": "no such file"}),
            *([httpx2.Response(200, json=ALIVE)] if make is gateway else []),
            httpx2.Response(410, json={"error": "this lease is over"}),
            httpx2.Response(500, json={"error": "unknown", "message": "begun"}),
            *[httpx2.Response(500, text="not JSON")] * QUICK.max_attempts,
        ]
    )
    transport = make(lambda request: next(answers))
    kinds = (AgentError, PermissionError, FileNotFoundError, RemoteLeaseExpired, DeliveryUnknown, InfrastructureError)
    for kind in kinds:
        with pytest.raises(kind):
            await transport.read(LENT, "a.txt")


@pytest.mark.parametrize("error", ["not_found", "no such file", "over"])
async def test_a_404_is_a_missing_file_only_if_the_sandbox_is_there(error: str):
    """Providers send it for a sandbox that they have lost, too: that is an outage."""
    states = iter(
        [(200, ALIVE), (404, {"error": error}), (410, {"error": "over"}), (200, ALIVE | {"state": "deleted"})]
    )

    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.method == "GET" and request.url.path.endswith("/sandboxes/a"):
            status, body = next(states)
            return httpx2.Response(status, json=body)
        return httpx2.Response(404, json={"error": error})

    api = gateway(answer)
    if error != "over":
        with pytest.raises(FileNotFoundError):
            await api.read(LENT, "a.txt")
        for _ in range(3):
            with pytest.raises(InfrastructureError):
                await api.read(LENT, "a.txt")
        assert next(states, None) is None, "the sandbox was looked up once for each"
    else:
        with pytest.raises(RemoteLeaseExpired):
            await api.read(LENT, "a.txt")


async def test_a_404_without_the_servers_code_is_no_missing_file_of_a_desktop_server():
    network = bridge(lambda request: httpx2.Response(404, json={"error": "not found"}))
    with pytest.raises(InfrastructureError):
        await network.read(LENT, "a.txt")


@BOTH
async def test_a_command_keeps_its_id_when_its_reply_is_lost_and_the_next_one_has_another(make):
    seen: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append(request.headers[transport.id_header])
        if len(seen) == 1:
            raise httpx2.ReadError("lost", request=request)
        return httpx2.Response(200, json={"returncode": 3, "stdout": "eA==", "stderr": ""})

    transport = make(answer)
    done = await transport.exec(LENT, ["x"], timeout_s=1)
    assert (done.returncode, done.stdout, done.stderr) == (3, b"x", b"")
    await transport.exec(LENT, ["x"], timeout_s=1)
    assert seen[0] == seen[1] != seen[2]
    assert all(seen)


@BOTH
async def test_deleting_a_released_desktop_is_no_error(make):
    transport = make(lambda request: httpx2.Response(410, json={"error": "over"}))
    await transport.delete(LENT)


@BOTH
@pytest.mark.parametrize(
    ("status", "body", "kind"), [(201, {}, InfrastructureError), (403, {"error": "no"}, ConfigError)]
)
async def test_a_failed_request_for_a_desktop_holds_nothing(make, status: int, body: dict[str, Any], kind):
    transport = make(lambda request: httpx2.Response(status, json=body))
    with pytest.raises(kind):
        await transport.acquire({}, "an-id", 1.0)
    assert transport.client.gate.desktops.held == 0


async def test_requests_about_a_lease_send_its_key_and_epoch():
    seen: list[httpx2.Headers] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append(request.headers)
        return httpx2.Response(200, json={})

    transport = bridge(answer)
    await transport.renew(LENT, 60)
    await transport.write(LENT, "a", b"x")
    assert {(each["authorization"], each["x-deskhand-epoch"]) for each in seen} == {
        ("Bearer the-key-of-the-lease", "7")
    }


async def test_a_server_that_reuses_epochs_does_not_merge_leases():
    released: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.method == "DELETE":
            released.append(request.url.path)
            return httpx2.Response(200, json={})
        body = {"lease": f"lease-{len(requests)}", "key": "k", "idle_s": 60, "epoch": 1, "width": 64, "height": 48}
        requests.append(request)
        return httpx2.Response(201, json=body)

    requests: list[httpx2.Request] = []
    async with ServerPool("http://host.test", timeouts=QUICK, transport=httpx2.MockTransport(answer)) as pool:
        before, now = await pool.lease(), await pool.lease()
        assert released == ["/leases/lease-0"]
        await pool.release(before)
        assert released == ["/leases/lease-0"]
        assert pool.gate.desktops.held == 1
        await pool.release(now)
        assert released == ["/leases/lease-0", "/leases/lease-1"]
        assert pool.gate.desktops.held == 0

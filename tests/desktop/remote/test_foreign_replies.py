"""Replies of proxies, with any status, before and after a request was performed: nothing is done twice, and what was
done is never reported as not done."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from fake_osworld import FakeOsworld
from fake_waa import FakeWaa

from deskhand.actions.ops import Type
from deskhand.config.schema import RemoteTimeouts
from deskhand.desktop import frame_codec
from deskhand.desktop.base import DesktopSpec, Frame
from deskhand.desktop.frame_codec import RemoteLeaseExpired
from deskhand.desktop.remote.osworld_desktop import OsworldDesktop
from deskhand.desktop.remote.osworld_server import OsworldServer
from deskhand.desktop.remote.replies import ForeignReply, server_reply
from deskhand.desktop.remote.retrying_client import RetryingClient
from deskhand.desktop.remote.sandbox_api import HttpSandboxApi
from deskhand.desktop.remote.screenshots import ScreenPolling
from deskhand.desktop.remote.server_desktop import ServerDesktop, ServerPool
from deskhand.desktop.remote.transport import Sandbox
from deskhand.desktop.remote.waa_desktop import WaaDesktop
from deskhand.errors import ConfigError, DeliveryUnknown, InfrastructureError
from deskhand.osworld.clients import RemoteOsworldClient

QUICK = RemoteTimeouts(connect_s=1, read_s=1, step_s=5, max_attempts=3, initial_backoff_s=0.001)
LOOKING = ScreenPolling(pause_s=0.0, max_screenshots=1)
SCREEN = DesktopSpec("plain", 64, 48)
LEASED = Sandbox("a", "ready", 60.0, "k", epoch=7, size=(64, 48))
STATUSES = [200, 204, 301, 302, 307, *(status for status in range(400, 600) if status != 429)]
PAGE = "<html><head><title>The proxy</title></head><body>cf-ray</body></html>"


class Proxy(httpx2.AsyncBaseTransport):
    """Replaces the replies to paths that end in `path`: `share` of them, after the request was passed on, or instead of
    passing it on."""

    def __init__(self, app: Any, path: str = "") -> None:
        self._inner = httpx2.ASGITransport(app=app)
        self.path, self.passes_on, self.num_left = path, True, 0
        self.reply: Callable[[], httpx2.Response] = lambda: httpx2.Response(500)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if self.num_left <= 0 or not request.url.path.endswith(self.path):
            return await self._inner.handle_async_request(request)
        self.num_left -= 1
        if self.passes_on:
            await self._inner.handle_async_request(request)
        return self.reply()


def page(status: int, **headers: str) -> httpx2.Response:
    return httpx2.Response(status, headers={"content-type": "text/html", **headers}, text=PAGE)


class Server:
    """Deskhand's servers as far as commands go: performs each request id once."""

    def __init__(self) -> None:
        self.ran: Counter[str] = Counter()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        self.ran[headers.get("x-deskhand-request") or headers["x-request-id"]] = 1
        body = b'{"returncode": 0, "stdout": "eA==", "stderr": ""}'
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": body})


def gateway_command(proxy: Proxy) -> Callable[[], Awaitable[Any]]:
    api = HttpSandboxApi("http://g.test", "k", timeouts=QUICK, transport=proxy)
    return lambda: api.exec(LEASED, ["touch", "x"], timeout_s=1)


def server_command(proxy: Proxy) -> Callable[[], Awaitable[Any]]:
    pool = ServerPool("http://s.test", "k", timeouts=QUICK, transport=proxy)
    desktop = ServerDesktop(pool, LEASED)
    return lambda: desktop.run(["touch", "x"])


@pytest.mark.parametrize("make", [gateway_command, server_command])
@pytest.mark.parametrize("passes_on", [True, False])
async def test_a_page_of_any_status_is_asked_again_and_a_command_is_run_once(make, passes_on: bool):
    server = Server()
    proxy = Proxy(server)
    command, proxy.passes_on = make(proxy), passes_on
    for status in STATUSES:
        server.ran.clear()
        proxy.reply, proxy.num_left = lambda status=status: page(status), 2
        assert (await command()).stdout == b"x", status
        assert list(server.ran.values()) == [1], status


@pytest.mark.parametrize("make", [gateway_command, server_command])
async def test_a_command_without_a_valid_reply_has_an_unknown_outcome(make):
    server = Server()
    proxy = Proxy(server)
    command = make(proxy)
    replies = [*((status, lambda status=status: page(status)) for status in STATUSES), ("JSON", lambda: WRONG)]
    for name, proxy.reply in replies:
        proxy.num_left = 3
        with pytest.raises(DeliveryUnknown) as told:
            await command()
        assert str(name).lower() in str(told.value).lower()


GATEWAY_JSON = (
    {"message": "Service Unavailable"},
    {"message": None},
    {"error": {"code": "ServiceUnavailable"}},
    {"error": "Service Unavailable", "status": 503, "path": "/v1"},
    {"detail": "upstream timed out", "error": None},
    ["unavailable"],
)


@pytest.mark.parametrize("make", [gateway_command, server_command])
@pytest.mark.parametrize("status", [408, 503])
@pytest.mark.parametrize("passes_on", [True, False])
async def test_json_of_an_api_gateway_is_no_word_of_the_server(make, status: int, passes_on: bool):
    """It may have passed the request on; what the server itself says is "not performed"."""
    server = Server()
    proxy = Proxy(server)
    command, proxy.passes_on = make(proxy), passes_on
    for body in GATEWAY_JSON:
        proxy.reply, proxy.num_left = lambda body=body: httpx2.Response(status, json=body), 3
        with pytest.raises(DeliveryUnknown):
            await command()
    for body in ({"error": "full"}, {"error": "infrastructure", "message": "it is starting"}):
        proxy.reply, proxy.num_left = lambda body=body: httpx2.Response(status, json=body), 3
        with pytest.raises(InfrastructureError) as told:
            await command()
        assert not isinstance(told.value, DeliveryUnknown)


@pytest.mark.parametrize("status", [408, 503])
async def test_a_program_is_not_started_twice_when_an_api_gateway_replies_for_the_machine(tmp_path, status: int):
    fake = FakeOsworld(tmp_path, (64, 48))
    proxy = Proxy(fake.app, "/setup/launch")
    server = OsworldServer(RetryingClient("http://vm.test", timeouts=QUICK, transport=proxy, wait_for_quota=False))
    for number, body in enumerate(GATEWAY_JSON):
        proxy.reply, proxy.num_left = lambda body=body: httpx2.Response(status, json=body), 1
        with pytest.raises(DeliveryUnknown):
            await server.launch(["gedit"])
        assert len(fake.guest.windows) == number + 1


WRONG = httpx2.Response(200, json={"stdout": "eA=="})


@pytest.mark.parametrize("status", [401, 409, 410])
async def test_a_refusal_after_a_lost_reply_leaves_the_outcome_unknown(status: int):
    """The server refused the second request; of the first nothing is known."""
    replies = iter([page(502), *[httpx2.Response(status, json={"error": "over", "message": "expired"})] * 2])
    api = HttpSandboxApi("http://g.test", "k", timeouts=QUICK, transport=httpx2.MockTransport(lambda _: next(replies)))
    with pytest.raises(DeliveryUnknown, match="earlier attempt"):
        await api.exec(LEASED, ["true"], timeout_s=1)
    with pytest.raises(RemoteLeaseExpired):
        await api.exec(LEASED, ["true"], timeout_s=1)


WRONG_SHAPES: dict[str, list[Any]] = {
    "run": [{}, [], 3, {"returncode": "0", "stdout": "", "stderr": ""}, {"returncode": 0, "stdout": "!", "stderr": ""}],
    "launch": [{}, {"pid": "7"}, {"pid": None}],
    "listdir": [{}, {"names": "a"}, {"names": [1]}],
    "accessibility_tree": [{}, {"tree": 1}],
    "windows": [{}, {"windows": {}}, {"windows": [{"id": 1}]}, {"windows": [[]]}],
    "wait_window": [{}, {"windows": None}],
    "clipboard": [{}, {"text": []}],
    "observe": [{}],
}


@pytest.mark.parametrize("name", WRONG_SHAPES)
async def test_json_of_another_shape_is_an_infrastructure_error(name: str):
    shape: Any = None
    network = httpx2.MockTransport(lambda request: httpx2.Response(200, json=shape))
    desktop: Any = ServerDesktop(ServerPool("http://s.test", "k", timeouts=QUICK, transport=network), LEASED)
    arguments = {"run": [["true"]], "launch": [["true"]], "listdir": ["."], "wait_window": ["x"]}.get(name, [])
    for shape in WRONG_SHAPES[name]:  # noqa: B007 - the network returns it
        with pytest.raises(InfrastructureError, match="200 application/json"):
            await getattr(desktop, name)(*arguments)


async def test_a_frame_that_is_damaged_on_its_way_is_requested_again():
    pixels = np.full((48, 64, 4), 200, np.uint8)
    header, whole = frame_codec.encode_frame(Frame(pixels, 1, "a", 0.0, "quiet", None, (1, 2)), None)
    num_damaged, ids = 2, []

    def answer(request: httpx2.Request) -> httpx2.Response:
        ids.append(request.headers.get(frame_codec.REQUEST_HEADER))
        content = whole[:-3] if len(ids) <= num_damaged else whole
        return httpx2.Response(200, headers={frame_codec.FRAME_HEADER: header}, content=content)

    pool = ServerPool("http://s.test", "k", timeouts=QUICK, transport=httpx2.MockTransport(answer))
    desktop = ServerDesktop(pool, LEASED)
    assert ((await desktop.perform([], action_id="1")).bgrx == pixels).all()
    assert len(ids) == 3
    assert len(set(ids)) == 1, "it is one request, which the server performs once"
    num_damaged = 1000
    with pytest.raises(DeliveryUnknown):
        await desktop.perform([], action_id="2")
    with pytest.raises(InfrastructureError):
        await desktop.observe()


@pytest.mark.parametrize(
    "body",
    [
        {}, [], {"id": "a"}, {"id": "a", "ttl_s": 0}, {"id": "a", "ttl_s": "60"}, {"id": 3, "ttl_s": 60},
        {"id": "a", "ttl_s": 60, "state": "running"}, {"id": "a", "ttl_s": 60, "width": "64"}, {"id": "", "ttl_s": 60},
    ],
)  # fmt: skip
async def test_a_sandbox_of_another_shape_is_an_infrastructure_error_and_holds_nothing(body):
    network = httpx2.MockTransport(lambda request: httpx2.Response(201, json=body))
    api = HttpSandboxApi("http://g.test", "k", timeouts=QUICK, transport=network)
    with pytest.raises(InfrastructureError, match="201 application/json"):
        await api.create(image=None, width=64, height=48, ttl_s=60, request_id="a")
    assert api.client.gate.desktops.held == 0


async def test_a_file_is_never_a_page_of_a_proxy():
    api = HttpSandboxApi("http://g.test", "k", timeouts=QUICK, transport=httpx2.MockTransport(lambda _: page(status)))
    for status in (200, 404, 403, 500):  # noqa: B007 - the network returns it
        with pytest.raises(InfrastructureError):
            await api.read(LEASED, "result.txt")


async def test_a_proxy_that_always_refuses_the_credentials_is_a_configuration_error():
    api = HttpSandboxApi("http://g.test", "k", timeouts=QUICK, transport=httpx2.MockTransport(lambda _: next(replies)))
    settings: dict[str, Any] = {"image": None, "width": 64, "height": 48, "ttl_s": 60, "request_id": "a"}
    for status in (401, 403, 407):
        replies = itertools.repeat(page(status))
        with pytest.raises(ConfigError, match="API key"):
            await api.create(**settings)
    replies = iter([page(403), page(403), httpx2.Response(201, json={"id": "a", "ttl_s": 60})])
    assert (await api.create(**settings)).id == "a", "one that refuses for a moment ends no run"


@pytest.mark.parametrize("kind", ["osworld", "waa"])
@pytest.mark.parametrize("passes_on", [True, False])
async def test_actions_on_a_machine_are_performed_once_whatever_a_proxy_answers(tmp_path, kind: str, passes_on: bool):
    fake = (FakeWaa if kind == "waa" else FakeOsworld)(tmp_path, (64, 48))
    proxy = Proxy(fake.app, "/execute_windows" if kind == "waa" else "/execute")
    proxy.passes_on = passes_on
    client = RetryingClient("http://vm.test", timeouts=QUICK, transport=proxy, wait_for_quota=False)
    desktop: Any = (
        WaaDesktop(client, polling=LOOKING, ready_s=5)
        if kind == "waa"
        else OsworldDesktop(client, skip_reset=True, polling=LOOKING)
    )
    await desktop.reset(SCREEN)
    for number, status in enumerate(STATUSES[::7]):
        proxy.reply, proxy.num_left = lambda status=status: page(status), 2
        assert isinstance(await desktop.perform([Type("q")], action_id=str(number)), Frame), status
        assert fake.guest.text == "q" * (number + 1), status
    proxy.passes_on = True
    for number, status in enumerate((200, 408, 500, 503, 520)):
        before = len(fake.guest.text)
        proxy.reply, proxy.num_left = lambda status=status: page(status), 3
        with pytest.raises(DeliveryUnknown):
            await desktop.perform([Type("z")], action_id=f"unknown-{number}")
        assert len(fake.guest.text) == before + 1, status


SETUP_STATUSES = [status for status in STATUSES if status != 204]


async def test_a_setup_step_whose_reply_is_a_page_is_not_sent_again(tmp_path):
    fake = FakeOsworld(tmp_path, (64, 48))
    proxy = Proxy(fake.app, "/setup/launch")
    client = RetryingClient("http://vm.test", timeouts=QUICK, transport=proxy)
    machine = RemoteOsworldClient(OsworldDesktop(client, skip_reset=True), SCREEN)
    for number, status in enumerate(SETUP_STATUSES):
        proxy.reply, proxy.num_left = lambda status=status: page(status), 1
        with pytest.raises(DeliveryUnknown):
            await machine.request("POST", "/setup/launch", json={"command": ["gedit"], "shell": False})
        assert len(fake.guest.windows) == number + 1, "it was started once"
    proxy.num_left = 0
    assert (await machine.request("POST", "/setup/launch", json={"command": ["gedit"]})).status_code == 200


async def test_a_setup_step_waits_while_the_provider_refuses(tmp_path):
    """A sandbox has a quota, and a step that was refused was not performed."""
    fake = FakeOsworld(tmp_path, (64, 48))
    proxy = Proxy(fake.app, "/setup/launch")
    proxy.passes_on, proxy.num_left = False, 5
    proxy.reply = lambda: httpx2.Response(429, headers={"retry-after-ms": "1"})
    client = RetryingClient("http://vm.test", timeouts=QUICK.model_copy(update={"max_attempts": 1}), transport=proxy)
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    client.quota.clock = type(client.quota.clock)(sleep=sleep)
    machine = RemoteOsworldClient(OsworldDesktop(client, skip_reset=True), SCREEN)
    proxy.num_left = 1
    reply = await machine.request("POST", "/setup/launch", json={"command": ["gedit"], "shell": False})
    assert reply.status_code == 200
    assert fake.guest.windows == ["gedit"]
    assert client.gate.refusals == 1


async def test_a_lost_file_is_not_a_missing_file(tmp_path):
    """A page with 404 or 500 would be scored as a file that the agent did not write."""
    fake = FakeOsworld(tmp_path, (64, 48))
    (fake.guest.home / "a.html").write_text(PAGE)
    proxy = Proxy(fake.app, "/file")
    client = RetryingClient("http://vm.test", timeouts=QUICK, transport=proxy)
    desktop = OsworldDesktop(client, skip_reset=True)
    assert await desktop.pull("a.html") == PAGE.encode(), "a page of the guest is a file"
    for status in (200, 403, 404, 500):
        proxy.reply, proxy.num_left = lambda status=status: page(status), 2
        assert await desktop.pull("a.html") == PAGE.encode()
        proxy.num_left = 3
        with pytest.raises(InfrastructureError):
            await desktop.pull("a.html")
    with pytest.raises(FileNotFoundError):
        await desktop.pull("none")


def test_pages_of_flask_are_the_servers_own():
    flask = "<!doctype html>\n<html lang=en>\n<title>500 Internal Server Error</title>\n<h1>Internal Server Error</h1>"
    for status in (400, 404, 405, 415, 500):
        assert server_reply(httpx2.Response(status, text=flask)).status_code == status
        assert server_reply(httpx2.Response(status, text="window_name required")).status_code == status
        with pytest.raises(ForeignReply):
            server_reply(page(status))
    with pytest.raises(ForeignReply):
        server_reply(httpx2.Response(502, text=flask))


@pytest.mark.parametrize(
    "head",
    [
        "<!doctype html>\n<html lang=en>\n  <head>\n    <title>",
        '<!DOCTYPE HTML PUBLIC "-//W3C//DTD HTML 4.01//EN"\n  "http://www.w3.org/TR/html4/loose.dtd">\n<html>\n'
        "  <head>\n    <title>",
    ],
)
def test_pages_of_werkzeugs_debugger_are_the_servers_own(head: str):
    """OSWorld's server runs with `debug=True`: an exception in it is a 500 of its own, not of a proxy."""
    title = f"KeyError: {'x' * 3000}\n // Werkzeug Debugger</title>\n  </head>\n  <body>"
    assert server_reply(httpx2.Response(500, html=head + title)).status_code == 500
    for status, text in ((502, head + title), (200, head + title), (500, head + "Bad gateway</title>")):
        with pytest.raises(ForeignReply):
            server_reply(httpx2.Response(status, html=text))


@pytest.mark.parametrize("printed", ["", "{", "[1, 2]", '{"a": 1}', "null", "[" * 3000, '["x", "", ""]'])
async def test_what_a_guest_prints_instead_of_a_result_is_an_infrastructure_error(tmp_path: Path, printed: str):
    fake = FakeOsworld(tmp_path, (64, 48))
    client = RetryingClient("http://vm.test", timeouts=QUICK, transport=httpx2.ASGITransport(app=fake.app))
    desktop: Any = OsworldDesktop(client, skip_reset=True, polling=LOOKING)
    await desktop.reset(SCREEN)

    async def answer(*arguments: Any) -> str:
        return printed

    desktop._run_marked = answer
    for request in (desktop.run(["true"]), desktop.launch(["true"]), desktop.windows()):
        with pytest.raises(InfrastructureError, match="printed something else"):
            await request

"""The sites of the suite `web`: who may open one, which forms are accepted, and their server process."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast
from urllib.parse import urljoin

import httpx2
import pytest

from deskhand.desktop.local import processes
from deskhand.errors import InfrastructureError
from deskhand.tasks.suites.web import sites
from deskhand.tasks.suites.web.scenario import VARIANTS
from deskhand.tasks.suites.web.server import APPS, MAX_CONNECTIONS, Site, SiteServer
from deskhand.tasks.suites.web.web_app import TOKEN


def form_of(of: Site, path: str, fields: dict[str, str]) -> dict[str, str]:
    """What a page of the site sends to a path."""
    return {TOKEN: of.form_token(path), **fields}


def token_in(page: str) -> str:
    """The token of a page's only form."""
    (token,) = re.findall(f"name={TOKEN} value=([0-9a-f]+)", page)
    return token


USER = {"sec-fetch-site": "same-origin", "sec-fetch-dest": "document", "sec-fetch-user": "?1"}


def site() -> Site:
    return Site(
        VARIANTS["web/mail/reply"](0)[0].state, {"size": 15, "color": "#fff", "accent": "#000"}, "key", "/mail/write"
    )


def client(of: Site) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(of), base_url="http://127.0.0.1:8080")


def test_a_guest_holds_few_connections_of_the_server_that_all_desktops_share() -> None:
    of, server, listener = site(), SiteServer(), socket.create_server(("127.0.0.1", 0), backlog=200)
    request = {"do": "open", "site": 1, "state": of.state, "style": of.style, "entry": "key", "start": "/"}
    server.answer(request, listener)
    held = [socket.create_connection(listener.getsockname()) for _ in range(MAX_CONNECTIONS + 3)]
    for connection in held[MAX_CONNECTIONS:]:
        connection.settimeout(10)
        try:
            assert connection.recv(1) == b""
        except ConnectionResetError:
            continue
    server.answer({"do": "close", "site": 1}, None)
    for connection in held:
        connection.close()


async def test_a_site_is_open_to_the_browser_that_entered_it_and_to_nobody_else() -> None:
    of = site()
    before = json.dumps(of.state)
    async with client(of) as browser, client(of) as stranger:
        assert (await browser.get("/mail/folder/Inbox")).status_code == 403
        assert (await browser.get("/enter/other")).status_code == 403
        assert (await browser.get("/enter/key")).headers["location"] == "/mail/write"
        assert (await browser.get("/mail/folder/Inbox")).status_code == 200
        assert (await stranger.get("/enter/key")).status_code == 403, "the address works once"
        form = form_of(of, "/mail/send", {"to": of.state["mail"]["people"][0], "subject": "x", "text": ""})
        for sender, headers in ((stranger, USER), (browser, {}), (browser, USER | {"sec-fetch-dest": "empty"})):
            assert (await sender.post("/mail/send", data=form, headers=headers)).status_code == 403
        large = {**form, "text": "x" * 100_000}
        assert (await browser.post("/mail/send", data=large, headers=USER)).status_code == 403
        assert json.dumps(of.state) == before
        assert of.num_refused == 7
        assert (await browser.post("/mail/send", data=form, headers=USER)).status_code == 303
        assert of.state["mail"]["messages"][-1]["folder"] == "Sent"


async def test_a_form_is_accepted_only_as_a_page_had_it_for_its_path() -> None:
    of, other = site(), site()
    before = json.dumps(of.state)
    async with client(of) as browser:
        page = await browser.get("/enter/key", follow_redirects=True)
        assert all(
            part in page.headers["content-security-policy"] for part in ("script-src 'none'", "form-action 'self'")
        )
        token = token_in(page.text)
        assert token == of.form_token("/mail/send")
        fields = {"to": of.state["mail"]["people"][0], "subject": "x", "text": ""}
        for path, given in (
            ("/mail/move/1/Trash", token),
            ("/mail/send", ""),
            ("/mail/send", other.form_token("/mail/send")),
            ("/mail//send", token),
        ):
            reply = await browser.post(path, data={**fields, TOKEN: given}, headers=USER)
            assert reply.status_code in (403, 404), path
            assert "content-security-policy" in reply.headers
        assert json.dumps(of.state) == before
        for _ in range(2):  # as with the back button
            assert (await browser.post("/mail/send", data={**fields, TOKEN: token}, headers=USER)).status_code == 303
        of.state["files"]["files"][0]["shared"]["O'Brien & Ünal"] = "may read"
        page = await browser.get("/files/file/1")
        path = "/files/unshare/1/O'Brien & Ünal"
        assert of.form_token(path) in page.text, "as the path arrives"
        assert (await browser.post(path, data={TOKEN: of.form_token(path)}, headers=USER)).status_code == 303


@pytest.mark.parametrize(
    ("path", "form"),
    [
        ("/mail/send", {"to": "Nobody", "subject": "x", "text": ""}),
        ("/mail/send", {"to": "", "subject": "x", "text": ""}),
        ("/mail/move/1/Elsewhere", {}),
        ("/mail/move/99/Trash", {}),
        ("/shop/add/1", {"number": "10"}),
        ("/shop/add/1", {"number": "x"}),
        ("/shop/order", {"name": "", "town": "Oslo", "delivery": "Express"}),
        ("/calendar/add", {"title": "x", "day": "Monday", "time": "25:00", "place": ""}),
        ("/calendar/add", {"title": "x", "day": "Sunday", "time": "12:00", "place": ""}),
        ("/issues/change/1", {"assignee": "Nobody"}),
        ("/booking/book/1", {"name": "x", "email": "x", "travelers": "1", "seat": "Any", "terms": "on"}),
        ("/booking/book/1", {"name": "x", "email": "x@y.de", "travelers": "7", "seat": "Any", "terms": "on"}),
        ("/booking/book/1", {"name": "x", "email": "x@y.de", "travelers": "1", "seat": "Any"}),
        ("/files/share/1", {"person": "Nobody", "right": "may edit"}),
        ("/files/rename/1", {"name": " "}),
        ("/files/rename/1", {"name": "x" * 3000}),
    ],
)
async def test_a_form_that_is_refused_changes_nothing(path: str, form: dict[str, str]) -> None:
    of = site()
    before = json.dumps(of.state)
    async with client(of) as browser:
        await browser.get("/enter/key")
        reply = await browser.post(path, data=form_of(of, path, form), headers=USER)
    assert "class=error" in reply.text
    assert json.dumps(of.state) == before


async def test_what_guests_store_is_bounded_and_escaped() -> None:
    of = site()
    async with client(of) as browser:
        await browser.get("/enter/key")
        fields = {"to": of.state["mail"]["people"][0], "subject": "<script>x</script>", "text": ""}
        form = form_of(of, "/mail/send", fields)
        replies = [await browser.post("/mail/send", data=form, headers=USER) for _ in range(400)]
        assert "no space left" in replies[-1].text
        assert len(of.state["mail"]["messages"]) == 300
        assert "<script>" not in (await browser.get("/mail/folder/Sent")).text


async def test_every_page_of_every_application_can_be_shown() -> None:
    of = site()
    pages = {"/mail/folder/Inbox", "/shop/cart", "/calendar/week", "/issues/list/open", "/booking/search"}
    seen, left = set[str](), [*pages, "/files/folder/Plans", "/booking/trains?town=Oslo", "/booking/bookings"]
    async with client(of) as browser:
        await browser.get("/enter/key")
        while left:
            path = left.pop()
            text = (await browser.get(path)).text
            assert "There is no such page" not in text, path
            seen.add(path)
            found = {urljoin(f"/{path.split('/')[1]}/", part.split("'")[0]) for part in text.split("href='")[1:]}
            left += found - seen - set(left)
    assert {path.split("/")[1] for path in seen} == set(APPS)
    assert len(seen) > 60


class Loopback:
    """Has its network in common with the test."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.close: Callable[[], None] = lambda: None

    async def listen_inside(self, port: int, on_close: Callable[[], None]) -> socket.socket:
        self.close = on_close
        return self.listener


async def opened(state: dict[str, Any]) -> tuple[Loopback, str]:
    guest = Loopback()
    style = {"size": 15, "color": "#fff", "accent": "#000"}
    entry = await sites.open_site(cast(Any, guest), state, style, "/mail/folder/Inbox")
    return guest, entry.replace(str(sites.PORT), str(guest.port))


async def test_sites_of_one_server_process_have_states_of_their_own_and_end_by_themselves() -> None:
    states = [VARIANTS["web/mail/reply"](seed)[0].state for seed in (0, 1)]
    (one, entry), (other, other_entry) = [await opened(state) for state in states]
    async with httpx2.AsyncClient(follow_redirects=True) as browser, httpx2.AsyncClient() as second:
        assert "Inbox" in (await browser.get(entry)).text
        assert (await second.get(other_entry)).status_code == 303
        token = token_in((await browser.get(f"http://127.0.0.1:{one.port}/mail/write")).text)
        form = {"to": states[0]["mail"]["people"][0], "subject": "x", "text": "", TOKEN: token}
        sent = await browser.post(f"http://127.0.0.1:{one.port}/mail/send", data=form, headers=USER)
        assert sent.status_code == 200
        assert (await sites.read_state(cast(Any, one)))["mail"]["messages"][-1]["subject"] == "x"
        assert await sites.read_state(cast(Any, other)) == states[1]
        elsewhere = await browser.get(f"http://127.0.0.1:{other.port}/mail/folder/Inbox")
        assert elsewhere.status_code == 403, "the cookie of one site does not open another"
        await asyncio.to_thread(one.close)
        with pytest.raises(InfrastructureError):
            await sites.read_state(cast(Any, one))
        assert (await second.get(f"http://127.0.0.1:{other.port}/shop/cart")).status_code == 200


async def test_the_end_of_the_server_process_is_an_outage_and_the_next_site_starts_another() -> None:
    state = VARIANTS["web/mail/reply"](0)[0].state
    guest, _ = await opened(state)
    (server,) = [pid for pid in processes.descendants(os.getpid()) if "web.server" in command_of(pid)]
    processes.kill(server)
    with pytest.raises(InfrastructureError):
        await sites.read_state(cast(Any, guest))
    again, entry = await opened(state)
    async with httpx2.AsyncClient() as browser:
        assert (await browser.get(entry)).status_code == 303
    assert await sites.read_state(cast(Any, again)) == state


def command_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")

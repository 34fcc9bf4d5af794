"""OSWorld's getters and clients: a failing desktop is an outage, never a value that scores zero."""

from __future__ import annotations

import asyncio
import subprocess
from types import SimpleNamespace
from unittest.mock import AsyncMock

import pytest
from desktops import embedded
from fake_pool import Painted

from deskhand.desktop.base import CommandResult, DesktopSpec
from deskhand.errors import ConfigError, InfrastructureError
from deskhand.integrations.desktop_env import server_provider
from deskhand.osworld.clients import LocalOsworldClient, RemoteOsworldClient
from deskhand.osworld.getters import WEB_KINDS, GetterReader, unavailable
from deskhand.osworld.official_evaluators import Value
from deskhand.osworld.setup_runner import SetupRunner
from deskhand.tasks.formats.osworld_getters import MODELS, AddressGetter, BareGetter

SMALL = DesktopSpec("plain", 256, 192)


class Asked(Painted):
    """Its programs end with `code`; None: the desktop fails while they run."""

    code: int | None = None

    async def run(self, argv, **named) -> CommandResult:
        if self.code is None:
            raise InfrastructureError("the desktop's box has ended")
        return CommandResult(self.code, b"", b"Connection refused")


@pytest.mark.parametrize("code", [None, 124])
async def test_a_desktop_failure_while_listing_tabs_is_an_outage(code):
    desktop = Asked()
    desktop.code = code
    reader = GetterReader(SetupRunner(LocalOsworldClient(desktop, DesktopSpec("plain", 64, 48))))  # type: ignore[arg-type]
    with pytest.raises(InfrastructureError):
        await reader.read(BareGetter(type="open_tabs_info"))


async def test_a_closed_chrome_has_no_tabs():
    desktop = Asked()
    desktop.code = 1
    reader = GetterReader(SetupRunner(LocalOsworldClient(desktop, DesktopSpec("plain", 64, 48))))  # type: ignore[arg-type]
    assert await reader.read(BareGetter(type="open_tabs_info")) == Value([])


async def test_shortcuts_on_the_desktop_are_read_from_the_host():
    async with embedded(SMALL) as desktop:
        await desktop.push("Desktop/page.desktop", b"[Desktop Entry]\nName=Page\n")
        await desktop.push("Desktop/odd.desktop", b"Name=\xff\n")
        await desktop.push("Desktop/notes.txt", b"Name=Notes\n")
        await desktop.run(["sh", "-c", "ln -s /etc/passwd ~/Desktop/link.desktop; mkdir ~/Desktop/folder.desktop"])
        reader = GetterReader(SetupRunner(LocalOsworldClient(desktop, SMALL)))
        getter = BareGetter(type="shortcuts_on_desktop")
        assert unavailable(getter) is None
        expected = {"odd.desktop": "Name=\ufffd\n", "page.desktop": "[Desktop Entry]\nName=Page\n"}
        assert await reader.read(getter) == Value(expected)


def test_only_getters_that_load_pages_are_said_to_need_the_web():
    says = {
        kind: unavailable(model.model_construct(type=kind, path="https://files.example/a"))
        for kind, model in MODELS.items()
    }
    assert {kind for kind, why in says.items() if why == "reads live web pages"} == set(WEB_KINDS)
    assert {kind for kind, why in says.items() if why == "not implemented"} == {
        "chrome_saved_address", "conference_city_in_order", "extensions_installed_from_shop", "replay",
    }  # fmt: skip


async def test_a_remote_machine_is_asked_for_a_program_and_nothing_is_written_there():
    asked = []

    class Machine(Painted):
        server = SimpleNamespace(client=None)

        async def run(self, argv, **named) -> CommandResult:
            asked.append(argv[-1])
            return CommandResult(0, b"", b"")

    client = RemoteOsworldClient(Machine(), DesktopSpec("plain", 64, 48))  # type: ignore[arg-type]
    assert await client.guest.has_program("socat")
    assert asked == ["socat"]


async def test_requests_to_a_machine_use_its_current_client_and_count_as_changes():
    asked = []

    class Machine(Painted):
        @property
        def server(self) -> SimpleNamespace:
            asked.append("used")
            return SimpleNamespace(client=SimpleNamespace(send=AsyncMock()))

    client = RemoteOsworldClient(Machine(), DesktopSpec("plain", 64, 48))  # type: ignore[arg-type]
    before = len(asked)
    await client.request("POST", "/setup/launch", json={})
    assert len(asked) == before + 1


async def test_the_default_video_player_is_the_one_of_most_types(tmp_path, monkeypatch):
    (tmp_path / "xdg-mime").write_text("#!/bin/sh\n[ $3 = video/avi ] && echo other.desktop || echo vlc.desktop\n")
    (tmp_path / "xdg-mime").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    class Guest(Painted):
        async def run(self, argv, **named) -> CommandResult:
            result = await asyncio.to_thread(subprocess.run, argv, capture_output=True, check=False)
            return CommandResult(result.returncode, result.stdout, result.stderr)

    reader = GetterReader(SetupRunner(LocalOsworldClient(Guest(), DesktopSpec("plain", 64, 48))))  # type: ignore[arg-type]
    assert await reader.read(BareGetter(type="default_video_player")) == Value("vlc.desktop\n")


ADDRESS = '<d><application name="Chromium"><entry name="Address and search bar">{}</entry></application></d>'
LAUGHS = '<!DOCTYPE d [<!ENTITY a "ha">' + "".join(
    f'<!ENTITY a{n} "{f"&a{n - 1};" * 20}">' for n in range(1, 9)
).replace("&a0;", "&a;")


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        (ADDRESS.format("a.org/b"), "https://a.org/b"),
        (ADDRESS.format(""), None),
        (ADDRESS.format("a\x01b"), None),
        (f"{LAUGHS}]>{ADDRESS.format('&a8;')}", None),
        ("<d>" * 200_000, None),
        ("", None),
    ],
)
async def test_the_address_is_read_from_any_accessibility_tree(tree: str, expected: str | None) -> None:
    class Guest(Painted):
        async def accessibility_tree(self) -> str:
            return tree

    reader = GetterReader(SetupRunner(LocalOsworldClient(Guest(), DesktopSpec("plain", 64, 48))))  # type: ignore[arg-type]
    assert await reader.read(AddressGetter(type="active_url_from_accessTree")) == Value(expected)


@pytest.mark.parametrize(
    ("data", "scheme"),
    [
        (b'{"browser": {"theme": {"color_scheme2": 2}}}', "dark"),
        (b'{"browser": {"theme": {"color_scheme2": [2]}}}', "system"),
        (b"[" * 100_000, "system"),
        (b"\xff", "system"),
    ],
)
async def test_any_bytes_in_chrome_s_preferences_give_a_value(data: bytes, scheme: str) -> None:
    class Guest(Painted):
        async def pull(self, path: str) -> bytes:
            return data

        async def run(self, argv, **named) -> CommandResult:
            return CommandResult(0, argv[-1].encode(), b"")

    reader = GetterReader(SetupRunner(LocalOsworldClient(Guest(), DesktopSpec("plain", 64, 48))))  # type: ignore[arg-type]
    assert await reader.read(BareGetter(type="chrome_color_scheme")) == Value(scheme)


@pytest.mark.parametrize("said", [b'"text"', b"[1, null]", b"[" * 100_000, b'[{"type": "page", "url": "a"}]'])
async def test_any_reply_at_the_port_of_chrome_gives_tabs(said: bytes) -> None:
    class Guest(Painted):
        async def run(self, argv, **named) -> CommandResult:
            return CommandResult(0, said, b"")

    reader = GetterReader(SetupRunner(LocalOsworldClient(Guest(), DesktopSpec("plain", 64, 48))))  # type: ignore[arg-type]
    found = await reader.read(BareGetter(type="open_tabs_info"))
    assert found == Value([{"title": "", "url": "a"}] if b"page" in said else [])


def test_an_api_key_in_a_server_url_is_rejected_and_not_printed():
    with pytest.raises(ConfigError) as refused:
        server_provider.register_server_provider("http://user:the-secret@127.0.0.1:8700")
    assert "the-secret" not in str(refused.value)

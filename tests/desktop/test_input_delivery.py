"""Every click and key arrives, once: counted by clients of several toolkits."""

from __future__ import annotations

import random
import shutil

import pytest
from desktops import embedded, point_on
from patience import limit

from benchmarks.input_clients import SPEC, Client, is_installed
from benchmarks.input_delivery import Tally, busy_processes, play
from deskhand.actions.ops import Click, Key, Op, Type
from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.local.windows import wait_until_input_is_read
from deskhand.tasks import chromium

EVENTS = 40
SMALL = DesktopSpec("plain", 320, 240)
at = point_on(SMALL)
PAGE = """<!doctype html><body><button style="width: 200px; height: 100px">button</button><script>
  const log = [];
  for (const name of ["mousedown", "mouseup", "click"]) addEventListener(name, () => log.push(name), true);
</script>"""
ARRIVED = """new Promise(done => {
  const end = Date.now() + 2000;
  const look = () => log.length >= 3 || Date.now() > end ? done(log) : setTimeout(look, 10);
  look();
})"""
needs_chromium = pytest.mark.skipif(
    shutil.which("chromium") is None, reason="Chromium is not installed (deskhand desktop install chromium)"
)


@pytest.mark.parametrize("toolkit", [pytest.param("Chromium", marks=needs_chromium), "GTK 3", "GTK 4", "Qt"])
async def test_clicks_and_keys_arrive_once_while_the_machine_is_busy(toolkit: str) -> None:
    async with embedded(SPEC) as desktop:
        if not await is_installed(desktop, toolkit):
            pytest.skip(f"the client of {toolkit} is not installed (benchmarks/input_clients)")
        client, tally = Client(desktop, toolkit), Tally()
        await client.start()
        with busy_processes(2):
            await play(client, EVENTS, tally, random.Random(toolkit))
    assert tally.sent >= EVENTS
    assert (tally.lost, tally.doubled) == (0, 0), tally.examples


@pytest.mark.parametrize("toolkit", [pytest.param("Chromium", marks=needs_chromium), "GTK 3", "GTK 4", "Qt"])
async def test_a_program_tells_that_it_has_read_its_input(toolkit: str) -> None:
    """Otherwise each text with a character that has no key would wait for the time limit."""
    async with embedded(SPEC) as desktop:
        if not await is_installed(desktop, toolkit):
            pytest.skip(f"the client of {toolkit} is not installed (benchmarks/input_clients)")
        client = Client(desktop, toolkit)
        await client.start()
        await desktop.perform([Click(client.points["e0"])], action_id="click")
        session, _ = desktop._parts()
        assert await desktop._call(lambda: wait_until_input_is_read(session.connection, limit(20)), limit(30))


async def test_the_calculator_takes_a_digit_twice_in_one_text_or_in_two_steps() -> None:
    async with embedded(SMALL) as desktop:
        await desktop.launch(["galculator"])
        await desktop.activate_window((await desktop.wait_window("galculator"))[0])
        await desktop.observe()
        texts: list[list[Op]] = [[Type("1155*2=")], [Key(("6",))], [Key(("6",))], [Type("*2=")]]
        results = []
        for index, ops in enumerate(texts):
            await desktop.perform(ops, action_id=str(index))
            if ops[-1] in (Type("1155*2="), Type("*2=")):
                await desktop.perform([Key(("ctrl", "c"))], action_id=f"copy {index}")
                results.append(await desktop.clipboard())
        assert results == ["2310", "132"]


async def test_keys_go_to_the_window_that_was_clicked_just_before() -> None:
    """Without a pause: the executor's own wait between a click and keys is left out."""
    async with embedded(SMALL) as desktop:
        for place in ("+0+0", "+170+0"):
            script = f"stty raw -echo; exec cat > heard{place}"
            await desktop.launch(["xterm", "-geometry", f"20x8{place}", "-e", "sh", "-c", script])
        await desktop.wait_window("xterm", count=2)
        await desktop.observe()
        _, executor = desktop._parts()

        def alternate() -> None:
            for index in range(40):
                executor.xtest.click((60 + 170 * (index % 2), 60), "left", 1, ())
                executor.xtest.type(str(index % 2))

        await desktop._call(alternate, 60.0)
        await desktop.observe()
        assert [await desktop.pull(f"heard{place}") for place in ("+0+0", "+170+0")] == [b"0" * 20, b"1" * 20]


@needs_chromium
async def test_a_click_on_a_page_that_has_just_loaded_arrives() -> None:
    async with embedded(SMALL) as desktop:
        await desktop.push("page.html", PAGE.encode())
        options = ("--kiosk", f"--window-size={SMALL.width},{SMALL.height}", "--window-position=0,0")
        page = await chromium.start(desktop, "page.html", *options)
        address = str(await page.evaluate("location.href"))
        for index in range(15):
            await page.call("Page.navigate", url=f"{address}?{index}")
            await page.wait_loaded()
            await desktop.perform([Click(at(50, 50))], action_id=str(index))
            assert await page.evaluate(ARRIVED) == ["mousedown", "mouseup", "click"], index


@needs_chromium
async def test_characters_without_a_key_reach_a_page_and_are_no_commands_to_the_browser() -> None:
    """More than there are spare keys, so each of these is used."""
    text = "".join(chr(0x4E00 + index) for index in range(250))
    async with embedded(SPEC) as desktop:
        await desktop.push("page.html", b"<!doctype html><textarea style='width: 500px; height: 300px'></textarea>")
        page = await chromium.start(desktop, "page.html")
        await desktop.observe()
        place = point_on(SPEC)(250, 250)
        await desktop.perform([Click(place), Type(text)], action_id="type")
        assert await page.evaluate("document.querySelector('textarea').value") == text


async def test_text_is_typed_although_every_spare_key_is_held() -> None:
    async with embedded(SMALL) as desktop:
        script = "stty raw -echo; exec cat > heard"
        await desktop.launch(["xterm", "-e", "sh", "-c", script])
        await desktop.wait_window("xterm")
        await desktop.observe()
        _, executor = desktop._parts()
        held = [chr(0x4E00 + index) for index in range(len(executor.xtest._spare_codes))]
        await desktop._call(lambda: executor.xtest._press_keys(held), 60.0)
        await desktop.perform([Type("жи")], action_id="type")
        assert (await desktop.pull("heard")).decode() == "".join([*held, "жи"])

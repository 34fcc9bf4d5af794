"""Programs of GNOME that OSWorld's tasks start, on a local desktop."""

from __future__ import annotations

import asyncio

import pytest
from desktops import embedded
from patience import limit

from deskhand.actions.ops import Type
from deskhand.desktop.applications.catalog import PROFILES
from deskhand.desktop.base import DesktopSpec
from deskhand.osworld.clients import LocalOsworldClient
from deskhand.osworld.setup_runner import SetupRunner
from deskhand.tasks.formats.osworld_setup_steps import Command, CommandStep

SMALL = DesktopSpec("plain", 640, 480)


def step(kind: str, command: str | list[str], *, shell: bool = False) -> CommandStep:
    return CommandStep(type=kind, parameters=Command(command=command, shell=shell))  # type: ignore[arg-type]


async def test_a_terminal_of_the_set_up_ends_by_its_name_and_leaves_its_history() -> None:
    start = "export DBUS_SESSION_BUS_ADDRESS='unix:path=/run/user/1000/bus'\ngnome-terminal --maximize "
    async with embedded(SMALL) as desktop:
        runner = SetupRunner(LocalOsworldClient(desktop, SMALL))
        await runner.set_up([step("execute", f"{start}--working-directory=/home/user/Desktop", shell=True)])
        (window,) = await desktop.windows()
        assert (window.width, "terminal" in window.wm_class.lower()) == (640, True)
        await desktop.perform([Type("head -c 17M /dev/zero > big; pwd > where\n")], action_id="1")
        for _ in range(600):
            if "where" in await desktop.listdir("Desktop"):
                break
            await asyncio.sleep(0.1)
        assert (await desktop.pull("Desktop/where")).endswith(b"/Desktop\n")
        sizes = await desktop.run(["stat", "-c", "%s", "Desktop/big"])
        assert sizes.stdout == b"17825792\n"  # the limit of a command that is waited for is 16 MiB
        await runner.set_up([step("execute", ["/bin/bash", "-c", "killall gnome-terminal-server"])], judging=True)
        for _ in range(600):
            if ".bash_history" in await desktop.listdir(".") and not await desktop.windows():
                break
            await asyncio.sleep(0.1)
        assert b"pwd > where" in await desktop.pull(".bash_history")


async def test_a_folder_of_the_set_up_is_opened_in_the_file_manager() -> None:
    async with embedded(SMALL) as desktop:
        runner = SetupRunner(LocalOsworldClient(desktop, SMALL))
        await runner.set_up([step("launch", ["nautilus", "/home/user/Documents"])])
        (window,) = await desktop.wait_window("Documents", timeout_s=limit(20))
        assert "pcmanfm" in window.wm_class.lower()


@pytest.mark.skipif(
    not PROFILES["volume"].installed, reason="PulseAudio is not installed; as root: deskhand desktop install volume"
)
async def test_the_volume_is_set_by_one_program_and_read_by_the_command_that_tasks_are_scored_with() -> None:
    asks = "pulseaudio --start\npactl list sinks | grep '^[[:space:]]Volume:' | head -n 1 | awk '{print $5}'"
    async with embedded(SMALL) as desktop:
        # The server starts by itself.
        raised = await desktop.run(["pactl", "set-sink-volume", "@DEFAULT_SINK@", "+30%"])
        assert (raised.returncode, raised.stderr) == (0, b"")
        assert (await desktop.run(["sh", "-c", asks])).stdout == b"70%\n"

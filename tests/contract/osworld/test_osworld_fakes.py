"""The fakes of OSWorld's and WAA's servers, checked by `desktop-env`'s own controllers from PyPI; and its `DesktopEnv`
as a provider of machines for us."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import pytest
from fake_osworld import FakeOsworld
from fake_waa import FakeWaa
from PIL import Image
from server_client import OWNER_KEY, bridge
from serving import on_a_port

from deskhand.actions.ops import Move, Point, screen_px
from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.remote.screenshots import ScreenPolling
from deskhand.errors import ConfigError
from deskhand.integrations.desktop_env.provider_pool import ProviderMachine, ProviderPool
from deskhand.server.sandbox_gateway import SandboxGatewayServer, UpstreamServer

HERE = Path(__file__).parent


async def test_the_fake_of_osworlds_server_satisfies_its_controllers(peer, tmp_path):
    fake = FakeOsworld(tmp_path / "vm")
    async with on_a_port(fake.app) as address:
        await peer.controllers(address, tmp_path / "cache")
        call = peer.call
        shot = Image.open(io.BytesIO(await call("controller.get_screenshot")))
        assert (shot.format, shot.size) == ("PNG", (320, 240))
        assert (await call("controller.get_accessibility_tree")).startswith("<desktop-frame")
        assert await call("controller.get_terminal_output") is None
        assert await call("controller.get_vm_platform") == "Linux"
        assert await call("controller.get_vm_screen_size") == {"width": 320, "height": 240}
        assert await call("controller.get_vm_desktop_path") == "/home/user/Desktop"
        done = await call("controller.execute_python_command", "pyautogui.click(12, 34); print('ok')")
        assert done == {"status": "success", "output": "ok\n", "error": "", "returncode": 0}
        assert ("clicked", "left", 12, 34, ()) in fake.guest.journal
        failed = await call("controller.execute_python_command", "nonsense(")
        assert failed["returncode"] == 1
        assert "SyntaxError" in failed["error"]
        for kind, told in (
            ("TYPING", {"text": "ab"}),
            ("SCROLL", {"dx": 1, "dy": -2}),
            ("HOTKEY", {"keys": ["ctrl", "s"]}),
        ):
            await call("controller.execute_action", {"action_type": kind, "parameters": told})
        assert fake.guest.text == "ab"
        assert [entry[:2] for entry in fake.guest.journal[-3:]] == [("sideways", 1), ("wheel", -2), ("chord", "ctrl")]
        (fake.guest.home / "a.txt").write_bytes(b"\x00x")
        assert await call("controller.get_file", "/home/user/a.txt") == b"\x00x"
        assert await call("controller.get_file", "/home/user/none") is None
        tree = await call("controller.get_vm_directory_tree", "/home/user")
        assert {each["name"] for each in tree["children"]} == {"Desktop", "Documents", "Downloads", "a.txt"}
        assert await call("controller.get_vm_directory_tree", "/none") is None
        assert await call("controller.get_vm_window_size", "nothing") is None
        ran = await call("controller.run_python_script", "print(6 * 7)")
        assert (ran["status"], ran["output"], ran["return_code"]) == ("success", "42\n", 0)
        assert (await call("controller.run_bash_script", "echo no >&2; exit 2", 20))["returncode"] == 2
        await call("controller.start_recording")
        await call("controller.end_recording", str(tmp_path / "film.mp4"))
        assert (tmp_path / "film.mp4").read_bytes()[4:8] == b"ftyp"
        await call("setup._execute_setup", ["sh", "-c", "echo x > made.txt"])
        assert (fake.guest.home / "made.txt").read_text() == "x\n"
        await call("setup._launch_setup", ["gedit"])
        await call("setup._activate_window_setup", "gedit")
        (tmp_path / "local.bin").write_bytes(b"\xff\x00")
        await call(
            "setup._upload_file_setup", [{"local_path": str(tmp_path / "local.bin"), "path": "/home/user/up/local.bin"}]
        )
        assert (fake.guest.home / "up" / "local.bin").read_bytes() == b"\xff\x00"
        await call("setup._open_setup", "/home/user/a.txt")
        await call("setup._close_window_setup", "gedit")
        assert fake.guest.windows == ["a.txt"]


async def test_the_fake_of_waas_server_answers_them_as_windows_does(peer, tmp_path):
    fake = FakeWaa(tmp_path / "vm")
    async with on_a_port(fake.app) as address:
        await peer.controllers(address, tmp_path / "cache")
        assert await peer.call("controller.get_vm_screen_size") == {"width": 320, "height": 240}
        done = await peer.call("controller.execute_python_command", "pyautogui.scroll(-240); print('ok')")
        assert done["output"] == "ok\n"
        assert fake.guest.journal[-1][:2] == ("wheel", -2)
        assert await peer.call("controller.get_terminal_output") is None, "500 on Windows"
        ran = await peer.call("controller.run_python_script", "print(1)")
        assert ran is None or ran["status"] == "error", "there is no such endpoint on Windows"


async def test_desktop_env_itself_runs_over_a_sandbox_gateway(peer, tmp_path):
    token = "a-token-of-the-contract-tests"
    async with bridge() as running:
        server = SandboxGatewayServer([UpstreamServer(f"http://127.0.0.1:{running.port}", OWNER_KEY)], {token: None})
        async with on_a_port(server.app()) as address:  # type: ignore[arg-type]
            await peer.make(address, token, tmp_path / "cache", (320, 240), gateway=True)
            seen, _, _, _ = await peer.call("step", "pyautogui.moveTo(30, 40)", pause=0)
            assert Image.open(io.BytesIO(base64.b64decode(seen["screenshot"]["base64"]))).size == (320, 240)
            (held,) = running.leases
            assert (await held.desktop.observe()).cursor == (30, 40)
            assert (await peer.call("controller.execute_python_command", "print(6 * 7)"))["output"] == "42\n"
            await peer.call("reset")
            (again,) = running.leases
            assert again.id != held.id, "a revert is a new sandbox"
            await peer.call("close")
            assert list(running.leases) == []
            assert token not in peer.log.read_text()
        await server.close()


async def test_desktop_envs_own_environment_starts_and_reverts_machines_for_us(python, tmp_path):
    async with bridge() as running:
        settings = {"screen_size": [320, 240], "cache_dir": str(tmp_path / "cache"), "require_a11y_tree": False}
        address = (f"http://127.0.0.1:{running.port}", OWNER_KEY)
        machine = ProviderMachine(str(python), "docker", settings, command=[str(HERE / "machine.py")], server=address)
        pool = ProviderPool([machine], spec=DesktopSpec("plain", 320, 240), polling=ScreenPolling(0.05, 2, 2))
        try:
            # desktop-env finds the bridge's key by netrc; our own requests have to show it too
            lease = await _keyed(pool)
            frame = await lease.desktop.perform([Move(Point(30, 40, screen_px(320, 240)))], action_id="1")
            assert frame.cursor == (30, 40)
            await lease.desktop.push("left.txt", b"x")
            await lease.desktop.reset(DesktopSpec("plain", 320, 240))
            with pytest.raises(FileNotFoundError):
                await lease.desktop.pull("left.txt")
            await pool.release(lease)
        finally:
            await pool.close()
        assert list(running.leases) == []
    with pytest.raises(ConfigError, match="desktop-env"):
        await ProviderMachine("/nowhere/python", "docker", {}).fresh()


async def _keyed(pool: ProviderPool):
    make = pool._make

    def keyed(name: str):
        desktop = make(name)
        desktop.client.headers["authorization"] = f"Bearer {OWNER_KEY}"  # type: ignore[attr-defined]
        return desktop

    pool._make = keyed
    return await pool.lease()

"""Programs: `/execute`, `/execute_with_verification`, `/setup/launch`, `/run_python`, `/run_bash_script`.

Invariant: a program is the guest's and runs as its user; a timeout or a failure has the status and the words of OSWorld's server.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from deskhand.errors import AgentError, DeliveryUnknown, FrameError
from deskhand.server.active_leases import ActiveLease
from deskhand.server.guest import Guest, GuestCommandResult, GuestTimeout
from deskhand.server.osworld.request import command_of, crash, json_of
from deskhand.server.pyautogui_parser import ops_from_argv

EXECUTE_S = 120.0
RUN_PYTHON_S = 30.0
CHECK_S = 5.0
_FAILURES = (GuestTimeout, OSError, ValueError, IndexError, TypeError)
"""What starting a program raises; a desktop that fails is another matter."""
LONGEST_S = 3600.0
"""Of what a client asks for itself: a script's time, or how long it waits for a verification."""


async def execute(held: ActiveLease, request: Request) -> Response:
    """`POST /execute` and `/setup/execute`."""
    body = await json_of(request)
    argv, command = await command_of(body, held.guest)
    try:
        return JSONResponse(_said(await finished(held, argv, command)))
    except _FAILURES as error:
        return _failed(error)


async def execute_with_verification(held: ActiveLease, request: Request) -> Response:
    """`POST /execute_with_verification` and `/setup/execute_with_verification`."""
    body = await json_of(request)
    argv, command = await command_of(body, held.guest)
    wanted = body.get("verification", {})
    most_s, interval_s = body.get("max_wait_time", 10), body.get("check_interval", 1)
    try:
        said = _said(await finished(held, argv, command))
        if not wanted:
            return JSONResponse(said)
        started = time.monotonic()
        while time.monotonic() - started < min(most_s, LONGEST_S):
            if await _verified(held, wanted):
                return JSONResponse(said | {"verification": "passed", "wait_time": time.monotonic() - started})
            await asyncio.sleep(max(0.05, min(interval_s, LONGEST_S)))
        failed = {"status": "verification_failed", "verification": "failed", "wait_time": most_s}
        return JSONResponse(said | failed, status_code=500)
    except _FAILURES as error:
        return _failed(error)


async def launch(held: ActiveLease, request: Request) -> Response:
    """`POST /setup/launch`."""
    body = await json_of(request)
    argv, command = await command_of(body, held.guest)
    try:
        await held.guest.launch(argv)
    except _FAILURES as error:
        return _failed(error)
    named = command if body.get("shell", False) else " ".join(command)
    return HTMLResponse(f"{named} launched successfully")


async def run_python(held: ActiveLease, request: Request) -> Response:
    """`POST /run_python`: a program file for the guest's Python."""
    code = (await json_of(request)).get("code")
    if not code:
        return JSONResponse({"status": "error", "message": "Code not supplied!"}, status_code=400)
    if not isinstance(code, str):
        raise crash()
    path = f"/tmp/python_exec_{secrets.token_hex(16)}.py"
    try:
        done = await _run_file(held.guest, ["/usr/bin/python3", path], path, code, RUN_PYTHON_S, None)
    except GuestTimeout:
        message = "Execution timeout: Code took too long to execute"
        said = {"status": "error", "message": message, "error": "TimeoutExpired", "need_more": False, "output": None}
        return JSONResponse(said, status_code=500)
    except _FAILURES as error:
        message = f"Execution error: {error}"
        said = {"status": "error", "message": message, "error": str(error), "need_more": False, "output": None}
        return JSONResponse(said, status_code=500)
    output, problem = done.output, done.error
    message = f"{output}\n{problem}" if output and problem else output or problem
    if done.returncode and not problem:
        problem = f"Process exited with code {done.returncode}"
        message = f"{message}\n{problem}" if message else problem
    return JSONResponse(
        {
            "status": "error" if done.returncode else "success",
            "message": message,
            "need_more": False,
            "output": output,
            "error": problem,
            "return_code": done.returncode,
        }
    )


async def run_bash_script(held: ActiveLease, request: Request) -> Response:
    """`POST /run_bash_script`: a script for bash, its complaints among its output."""
    body = await json_of(request)
    script, timeout_s, folder = body.get("script"), body.get("timeout", 100), body.get("working_dir")
    if not script:
        return _script_failed("Script not supplied!", 400)
    if not isinstance(script, str) or isinstance(timeout_s, bool) or not isinstance(timeout_s, (int, float)):
        raise crash()
    if folder:
        folder = await held.guest.expand(str(folder))
        if not await held.guest.test("e", folder):
            return _script_failed(f"Working directory does not exist: {folder}", 400)
    if "#!/bin/bash" not in script:
        script = f"#!/bin/bash\n\n{script}"
    path = f"/tmp/tmp{secrets.token_hex(8)}.sh"
    argv = ["/bin/sh", "-c", 'exec /bin/bash "$1" 2>&1', "sh", path]
    try:
        done = await _run_file(held.guest, argv, path, script, min(timeout_s, LONGEST_S), folder or None)
    except GuestTimeout:
        return _script_failed(f"Script execution timed out after {timeout_s} seconds", 500)
    except _FAILURES as error:
        return _script_failed(f"Failed to execute script: {error}", 500)
    status = "error" if done.returncode else "success"
    return JSONResponse({"status": status, "output": done.output, "error": "", "returncode": done.returncode})


async def finished(
    held: ActiveLease, argv: list[str], command: str | list[str], timeout_s: float = EXECUTE_S
) -> GuestCommandResult:
    """What the program said: performed at once when it is nothing but actions, else run in the guest.

    When it is not known whether it was performed or run, or it was and its screen cannot be seen, that is a program that failed:
    a client that got an error would send it again.
    """
    ops = ops_from_argv(argv, *held.size)
    try:
        if ops is not None:
            with contextlib.suppress(
                AgentError
            ):  # nothing was performed; the guest's pyautogui has ways of its own with such ops
                await held.desktop.perform(ops, action_id=secrets.token_hex(16))
                return GuestCommandResult(0, "", "")
        return await held.guest.run(argv, timeout_s=timeout_s)
    except (DeliveryUnknown, FrameError) as error:
        return GuestCommandResult(1, "", f"{error}\n")
    except GuestTimeout as error:
        raise GuestTimeout(f"Command {command!r} {error}") from None


async def _run_file(
    guest: Guest, argv: list[str], path: str, text: str, timeout_s: float, folder: str | None
) -> GuestCommandResult:
    """Run `argv` while a file of the guest holds `text`."""
    await guest.write(path, text.encode())
    try:
        return await guest.run(argv, timeout_s=timeout_s, cwd=folder)
    finally:
        await guest.desktop.run(["rm", "-f", "--", path])


async def _verified(held: ActiveLease, wanted: dict[str, Any]) -> bool:
    if "window_exists" in wanted:
        name = str(wanted["window_exists"]).lower()
        if not any(name in window.title.lower() for window in await held.desktop.windows()):
            return False
    if "command_success" in wanted:
        command = wanted["command_success"]
        argv = ["/bin/sh", "-c", *([command] if isinstance(command, str) else map(str, command))]
        try:
            return (await held.guest.run(argv, timeout_s=CHECK_S)).returncode == 0
        except (GuestTimeout, OSError, ValueError):
            return False
    return True


def _said(done: GuestCommandResult) -> dict[str, Any]:
    return {"status": "success", "output": done.output, "error": done.error, "returncode": done.returncode}


def _failed(error: Exception) -> JSONResponse:
    return JSONResponse({"status": "error", "message": str(error)}, status_code=500)


def _script_failed(output: str, status: int) -> JSONResponse:
    return JSONResponse({"status": "error", "output": output, "error": "", "returncode": -1}, status_code=status)

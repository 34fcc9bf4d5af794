"""OSWorld routes that run programs: `/execute`, `/execute_with_verification`, `/setup/launch`, `/run_python`,
`/run_bash_script`.

Programs run in the guest as its user. Timeouts and failures have the status and text of OSWorld's server.
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
from deskhand.server.pyautogui_rpc import ops_from_argv

EXECUTE_TIMEOUT_S = 120.0
RUN_PYTHON_TIMEOUT_S = 30.0
VERIFICATION_TIMEOUT_S = 5.0
_START_ERRORS = (GuestTimeout, OSError, ValueError, IndexError, TypeError)
"""Exceptions of a program that cannot be started; failures of the desktop are separate."""
MAX_TIMEOUT_S = 3600.0
"""Upper bound of client-supplied script timeouts and verification waits."""


async def execute(lease: ActiveLease, request: Request) -> Response:
    body = await json_of(request)
    argv, command = await command_of(body, lease.guest)
    try:
        return JSONResponse(_result_to_json(await run_to_end(lease, argv, command)))
    except _START_ERRORS as error:
        return _failed(error)


async def execute_with_verification(lease: ActiveLease, request: Request) -> Response:
    body = await json_of(request)
    argv, command = await command_of(body, lease.guest)
    wanted = body.get("verification", {})
    max_wait_s, interval_s = body.get("max_wait_time", 10), body.get("check_interval", 1)
    try:
        result = _result_to_json(await run_to_end(lease, argv, command))
        if not wanted:
            return JSONResponse(result)
        started = time.monotonic()
        while time.monotonic() - started < min(max_wait_s, MAX_TIMEOUT_S):
            if await _is_verified(lease, wanted):
                return JSONResponse(result | {"verification": "passed", "wait_time": time.monotonic() - started})
            await asyncio.sleep(max(0.05, min(interval_s, MAX_TIMEOUT_S)))
        failed = {"status": "verification_failed", "verification": "failed", "wait_time": max_wait_s}
        return JSONResponse(result | failed, status_code=500)
    except _START_ERRORS as error:
        return _failed(error)


async def launch(lease: ActiveLease, request: Request) -> Response:
    body = await json_of(request)
    argv, command = await command_of(body, lease.guest)
    try:
        await lease.guest.launch(argv)
    except _START_ERRORS as error:
        return _failed(error)
    name = command if body.get("shell", False) else " ".join(command)
    return HTMLResponse(f"{name} launched successfully")


async def run_python(lease: ActiveLease, request: Request) -> Response:
    """`POST /run_python`: run a program file with the guest's Python."""
    code = (await json_of(request)).get("code")
    if not code:
        return JSONResponse({"status": "error", "message": "Code not supplied!"}, status_code=400)
    if not isinstance(code, str):
        raise crash()
    path = f"/tmp/python_exec_{secrets.token_hex(16)}.py"
    try:
        done = await _run_file(lease.guest, ["/usr/bin/python3", path], path, code, RUN_PYTHON_TIMEOUT_S, None)
    except _START_ERRORS as error:
        message, reason = f"Execution error: {error}", str(error)
        if isinstance(error, GuestTimeout):
            message, reason = "Execution timeout: Code took too long to execute", "TimeoutExpired"
        body = {"status": "error", "message": message, "error": reason, "need_more": False, "output": None}
        return JSONResponse(body, status_code=500)
    output, error_text = done.output, done.error
    message = f"{output}\n{error_text}" if output and error_text else output or error_text
    if done.returncode and not error_text:
        error_text = f"Process exited with code {done.returncode}"
        message = f"{message}\n{error_text}" if message else error_text
    body = {"status": "error" if done.returncode else "success", "message": message, "need_more": False}
    return JSONResponse(body | {"output": output, "error": error_text, "return_code": done.returncode})


async def run_bash_script(lease: ActiveLease, request: Request) -> Response:
    """`POST /run_bash_script`: run a bash script with stderr merged into its output."""
    body = await json_of(request)
    script, timeout_s, folder = body.get("script"), body.get("timeout", 100), body.get("working_dir")
    if not script:
        return _script_failed("Script not supplied!", 400)
    if not isinstance(script, str) or isinstance(timeout_s, bool) or not isinstance(timeout_s, (int, float)):
        raise crash()
    if folder:
        folder = await lease.guest.expand(str(folder))
        if not await lease.guest.test("e", folder):
            return _script_failed(f"Working directory does not exist: {folder}", 400)
    if "#!/bin/bash" not in script:
        script = f"#!/bin/bash\n\n{script}"
    path = f"/tmp/tmp{secrets.token_hex(8)}.sh"
    argv = ["/bin/sh", "-c", 'exec /bin/bash "$1" 2>&1', "sh", path]
    try:
        done = await _run_file(lease.guest, argv, path, script, min(timeout_s, MAX_TIMEOUT_S), folder or None)
    except GuestTimeout:
        return _script_failed(f"Script execution timed out after {timeout_s} seconds", 500)
    except _START_ERRORS as error:
        return _script_failed(f"Failed to execute script: {error}", 500)
    status = "error" if done.returncode else "success"
    return JSONResponse({"status": status, "output": done.output, "error": "", "returncode": done.returncode})


async def run_to_end(
    lease: ActiveLease, argv: list[str], command: str | list[str], timeout_s: float = EXECUTE_TIMEOUT_S
) -> GuestCommandResult:
    """Perform a program of plain pyautogui calls directly; run any other program in the guest.

    An unknown outcome or a failed screenshot is reported as a failed program: after an HTTP error, clients would
    repeat the action.
    """
    ops = ops_from_argv(argv, *lease.size)
    try:
        if ops is not None:
            with contextlib.suppress(AgentError):  # not performed: let the guest's pyautogui handle it
                await lease.desktop.perform(ops, action_id=secrets.token_hex(16))
                return GuestCommandResult(0, "", "")
        return await lease.guest.run(argv, timeout_s=timeout_s)
    except (DeliveryUnknown, FrameError) as error:
        return GuestCommandResult(1, "", f"{error}\n")
    except GuestTimeout as error:
        raise GuestTimeout(f"Command {command!r} {error}") from None


async def _run_file(
    guest: Guest, argv: list[str], path: str, text: str, timeout_s: float, folder: str | None
) -> GuestCommandResult:
    await guest.write(path, text.encode())
    try:
        return await guest.run(argv, timeout_s=timeout_s, cwd=folder)
    finally:
        await guest.desktop.run(["rm", "-f", "--", path])


async def _is_verified(lease: ActiveLease, wanted: dict[str, Any]) -> bool:
    if "window_exists" in wanted:
        name = str(wanted["window_exists"]).lower()
        if not any(name in window.title.lower() for window in await lease.desktop.windows()):
            return False
    if "command_success" in wanted:
        command = wanted["command_success"]
        argv = ["/bin/sh", "-c", *([command] if isinstance(command, str) else map(str, command))]
        try:
            return (await lease.guest.run(argv, timeout_s=VERIFICATION_TIMEOUT_S)).returncode == 0
        except (GuestTimeout, OSError, ValueError):
            return False
    return True


def _result_to_json(done: GuestCommandResult) -> dict[str, Any]:
    return {"status": "success", "output": done.output, "error": done.error, "returncode": done.returncode}


def _failed(error: Exception) -> JSONResponse:
    return JSONResponse({"status": "error", "message": str(error)}, status_code=500)


def _script_failed(output: str, status: int) -> JSONResponse:
    return JSONResponse({"status": "error", "output": output, "error": "", "returncode": -1}, status_code=status)

# ruff: noqa: ASYNC240 - files of a fake machine are small and on this disk
"""OSWorld's in-VM server without a machine: its routes, statuses, words and warts, over a `FakeGuest`.

Written from the contract; it shares no code with clients. What the original does not handle is Flask's page for status
500.
"""

from __future__ import annotations

import asyncio
import os
import shlex
from pathlib import Path
from typing import Any

from fake_guest import FakeGuest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

PAGE = (
    "<!doctype html>\n<html lang=en>\n<title>500 Internal Server Error</title>\n<h1>Internal Server Error</h1>\n"
    "<p>The server encountered an internal error and was unable to complete your request. "
    "Either the server is overloaded or there is an error in the application.</p>\n"
)


class FakeOsworld:
    """`app` is to be served; `guest` is what is behind it."""

    def __init__(self, folder: Path, size: tuple[int, int] = (320, 240)) -> None:
        self.guest = FakeGuest(folder, "linux", size)
        self.requests: list[tuple[str, str]] = []
        self.recording = False
        self.lacks_descriptors = False
        """Whether it fails at every file."""
        self.wall = b"\x89PNG wallpaper"
        self.app = Starlette(routes=self.routes())

    def routes(self) -> list[Route]:
        table: list[tuple[str, str, Any]] = [
            ("POST", "/execute", self.execute), ("POST", "/setup/execute", self.execute),
            ("POST", "/execute_with_verification", self.verified),
            ("POST", "/setup/execute_with_verification", self.verified),
            ("POST", "/setup/launch", self.launch), ("GET", "/screenshot", self.screenshot),
            ("GET", "/terminal", self.terminal), ("GET", "/accessibility", self.accessibility),
            ("POST", "/screen_size", self.screen_size), ("POST", "/window_size", self.window_size),
            ("POST", "/desktop_path", self.desktop_path), ("POST", "/wallpaper", self.wallpaper),
            ("POST", "/list_directory", self.list_directory), ("POST", "/file", self.file),
            ("POST", "/setup/upload", self.upload), ("GET", "/platform", self.platform),
            ("GET", "/cursor_position", self.cursor), ("POST", "/setup/change_wallpaper", self.change_wallpaper),
            ("POST", "/setup/download_file", self.download), ("POST", "/setup/open_file", self.open_file),
            ("POST", "/setup/activate_window", self.activate), ("POST", "/setup/close_window", self.close_window),
            ("POST", "/start_recording", self.start_recording), ("POST", "/end_recording", self.end_recording),
            ("POST", "/run_python", self.run_python), ("POST", "/run_bash_script", self.run_bash),
        ]  # fmt: skip
        return [Route(path, self.handled(handler), methods=[method]) for method, path, handler in table]

    def handled(self, handler: Any) -> Any:
        async def handle(request: Request) -> Response:
            self.requests.append((request.method, request.url.path))
            if len(self.requests) > 100_000:
                del self.requests[:50_000]
            try:
                return await handler(request)
            except Exception:
                return HTMLResponse(PAGE, status_code=500)

        return handle

    # -- programs

    async def finished(self, command: Any, shell: bool, timeout_s: float = 120.0) -> dict[str, Any]:
        with self.guest.counted():
            done = await asyncio.to_thread(self.guest.run, command, shell=shell, timeout=timeout_s)
        said = [each.decode() if isinstance(each, bytes) else each for each in (done.stdout, done.stderr)]
        return {"status": "success", "output": said[0], "error": said[1], "returncode": done.returncode}

    @staticmethod
    def command_of(body: dict[str, Any]) -> Any:
        shell, command = body.get("shell", False), body.get("command", "" if body.get("shell", False) else [])
        if isinstance(command, str) and not shell:
            command = shlex.split(command)
        if isinstance(command, list):
            command = [os.path.expanduser(word) if word.startswith("~/") else word for word in command]
        return command

    async def execute(self, request: Request) -> Response:
        body = await request.json()
        try:
            return JSONResponse(await self.finished(self.command_of(body), bool(body.get("shell", False))))
        except Exception as error:
            return JSONResponse({"status": "error", "message": str(error)}, status_code=500)

    async def verified(self, request: Request) -> Response:
        body = await request.json()
        wanted = body.get("verification", {})
        try:
            said = await self.finished(self.command_of(body), bool(body.get("shell", False)))
            if not wanted:
                return JSONResponse(said)
            window = wanted.get("window_exists")
            if window is None or any(window.lower() in each.lower() for each in self.guest.windows):
                return JSONResponse(said | {"verification": "passed", "wait_time": 0.0})
            failed = {
                "status": "verification_failed",
                "verification": "failed",
                "wait_time": body.get("max_wait_time", 10),
            }
            return JSONResponse(said | failed, status_code=500)
        except Exception as error:
            return JSONResponse({"status": "error", "message": str(error)}, status_code=500)

    async def launch(self, request: Request) -> Response:
        body = await request.json()
        command = self.command_of(body)
        self.guest.start(command)
        return HTMLResponse(f"{command if body.get('shell') else ' '.join(command)} launched successfully")

    async def run_python(self, request: Request) -> Response:
        code = (await request.json()).get("code")
        if not code:
            return JSONResponse({"status": "error", "message": "Code not supplied!"}, status_code=400)
        status, out, err = await asyncio.to_thread(self.guest.python, code)
        message = f"{out}\n{err}" if out and err else out or err
        return JSONResponse({
            "status": "error" if status else "success", "message": message, "need_more": False, "output": out,
            "error": err, "return_code": status,
        })  # fmt: skip

    async def run_bash(self, request: Request) -> Response:
        body = await request.json()
        if not body.get("script"):
            failed = {"status": "error", "output": "Script not supplied!", "error": "", "returncode": -1}
            return JSONResponse(failed, status_code=400)
        folder = body.get("working_dir")
        if folder and not os.path.exists(self.guest.path(folder)):
            said = f"Working directory does not exist: {folder}"
            return JSONResponse({"status": "error", "output": said, "error": "", "returncode": -1}, status_code=400)
        done = await asyncio.to_thread(self.guest.run, ["bash", "-c", f"exec 2>&1\n{body['script']}"], cwd=folder)
        status = "error" if done.returncode else "success"
        return JSONResponse(
            {"status": status, "output": done.stdout.decode(), "error": "", "returncode": done.returncode}
        )

    # -- the screen

    async def screenshot(self, request: Request) -> Response:
        return Response(self.guest.picture(), media_type="image/png")

    async def terminal(self, request: Request) -> Response:
        return JSONResponse({"output": None, "status": "success"})

    async def accessibility(self, request: Request) -> Response:
        names = "".join(f'<frame name="{name}"/>' for name in self.guest.windows)
        return JSONResponse({"AT": f'<desktop-frame name="main">{names}</desktop-frame>'})

    async def screen_size(self, request: Request) -> Response:
        return JSONResponse({"width": self.guest.size[0], "height": self.guest.size[1]})

    async def window_size(self, request: Request) -> Response:
        form = await request.form()
        if "app_class_name" not in form:
            return JSONResponse({"error": "app_class_name is required"}, status_code=400)
        if not any(str(form["app_class_name"]).lower() == each.lower() for each in self.guest.windows):
            raise TypeError("the view function did not return a valid response")
        return JSONResponse({"width": 100, "height": 80})

    async def cursor(self, request: Request) -> Response:
        return JSONResponse(list(self.guest.pointer))

    async def platform(self, request: Request) -> Response:
        return HTMLResponse("Linux")

    async def activate(self, request: Request) -> Response:
        body = await request.json()
        if not body.get("window_name"):
            return HTMLResponse("window_name required", status_code=400)
        self.guest.note("activated", body["window_name"])
        return HTMLResponse("Window activated successfully")

    async def close_window(self, request: Request) -> Response:
        body = await request.json()
        if not body.get("window_name"):
            return HTMLResponse("window_name required", status_code=400)
        self.guest.windows = [each for each in self.guest.windows if body["window_name"].lower() not in each.lower()]
        return HTMLResponse("Window closed successfully.")

    # -- files

    async def desktop_path(self, request: Request) -> Response:
        return JSONResponse({"desktop_path": "/home/user/Desktop"})

    async def list_directory(self, request: Request) -> Response:
        path = (await request.json()).get("path")
        real = Path(self.guest.path(path))
        if not real.is_dir():
            return JSONResponse({"error": f"Directory not found: {path}"}, status_code=400)

        def tree(folder: Path) -> dict[str, Any]:
            children = [
                tree(each) if each.is_dir() else {"type": "file", "name": each.name}
                for each in sorted(folder.iterdir())
            ]  # fmt: skip
            return {"type": "directory", "name": folder.name, "children": children}

        return JSONResponse({"directory_tree": tree(real)})

    async def file(self, request: Request) -> Response:
        form = await request.form()
        if "file_path" not in form:
            return JSONResponse({"error": "file_path is required"}, status_code=400)
        if self.lacks_descriptors:
            return HTMLResponse(PAGE, status_code=500)
        real = Path(self.guest.path(os.path.expandvars(str(form["file_path"]))))
        if not real.exists():
            return JSONResponse({"error": "File not found"}, status_code=404)
        return Response(await asyncio.to_thread(real.read_bytes), media_type="application/octet-stream")

    async def upload(self, request: Request) -> Response:
        form = await request.form()
        if "file_path" not in form or "file_data" not in form:
            return JSONResponse({"error": "file_path and file_data are required"}, status_code=400)
        upload: Any = form["file_data"]
        data = await upload.read()
        real = Path(self.guest.path(str(form["file_path"])))
        real.parent.mkdir(parents=True, exist_ok=True)
        await asyncio.to_thread(real.write_bytes, data)
        return HTMLResponse(f"File Uploaded: {len(data)} bytes")

    async def download(self, request: Request) -> Response:
        body = await request.json()
        if not body.get("url") or not body.get("path"):
            return HTMLResponse("Path or URL not supplied!", status_code=400)
        return HTMLResponse("Failed to download the file. No retries left. Error: no network", status_code=500)

    async def open_file(self, request: Request) -> Response:
        path = (await request.json()).get("path")
        if not path:
            return HTMLResponse("Path not supplied!", status_code=400)
        if not os.path.exists(self.guest.path(path)):
            return HTMLResponse(f"Application/file not found: {path}", status_code=404)
        self.guest.start(os.path.basename(path))
        return HTMLResponse("File opened and window activated successfully")

    async def wallpaper(self, request: Request) -> Response:
        return Response(self.wall, media_type="image/png")

    async def change_wallpaper(self, request: Request) -> Response:
        path = (await request.json()).get("path")
        if not path:
            return HTMLResponse("Path not supplied!", status_code=400)
        if not os.path.exists(self.guest.path(path)):
            return HTMLResponse(f"File not found: {path}", status_code=404)
        self.wall = Path(self.guest.path(path)).read_bytes()
        return HTMLResponse("Wallpaper changed successfully")

    async def start_recording(self, request: Request) -> Response:
        if self.recording:
            return JSONResponse({"status": "error", "message": "Recording is already in progress."}, status_code=400)
        self.recording = True
        return JSONResponse({"status": "success", "message": "Started recording"})

    async def end_recording(self, request: Request) -> Response:
        if not self.recording:
            return JSONResponse({"status": "error", "message": "No recording in progress to stop."}, status_code=400)
        self.recording = False
        return Response(b"\x00\x00\x00\x18ftypmp42", media_type="video/mp4")

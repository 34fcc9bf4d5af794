# ruff: noqa: ASYNC240 - files of a fake machine are small and on this disk
"""Windows Agent Arena's in-VM server and its evaluate server without a machine, over a `FakeGuest`.

`/execute_windows` runs the code in the server's own process and answers with a status alone; what is printed there with
"error" in it is a failure; errors are answered by one handler for all, `{"status": "error", "message"}` with 500.
`/run_python`, `/run_bash_script` and `/execute_with_verification` are not there. The pointer's place is answered with
an error, as there.
"""

from __future__ import annotations

import asyncio
import base64
import io
import os
import shutil
import types
from pathlib import Path
from typing import Any

from fake_guest import FakeGuest
from fake_osworld import FakeOsworld
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

SHELL_WINDOWS = ["Program Manager"]
NOT_THERE = ("/run_python", "/run_bash_script", "/execute_with_verification", "/setup/execute_with_verification")


class FakeWaa(FakeOsworld):
    """`dirty` windows cannot be closed; `stuck` makes every request wait until it is cleared."""

    def __init__(self, folder: Path, size: tuple[int, int] = (320, 240)) -> None:
        super().__init__(folder, size)
        self.guest = FakeGuest(folder, "windows", size)
        self.guest.windows = list(SHELL_WINDOWS)
        self.dirty: list[str] = []
        self.running = asyncio.Event()
        self.running.set()

    def routes(self) -> list[Route]:
        shared = [route for route in super().routes() if route.path not in NOT_THERE]
        table: list[tuple[str, str, Any]] = [
            ("GET", "/probe", self.probe), ("POST", "/execute_windows", self.execute_windows),
            ("POST", "/update_computer", self.update_computer), ("GET", "/obs_winagent", self.observation),
            ("POST", "/setup/close_all", self.close_all), ("POST", "/setup/clear_task_files", self.clear_task_files),
            ("POST", "/setup/create_folder", self.create_folder), ("POST", "/setup/create_file", self.create_file),
            ("POST", "/setup/recycle", self.recycle), ("POST", "/file_exists", self.file_exists),
            ("POST", "/folder_exists", self.folder_exists), ("POST", "/documents_path", self.documents_path),
            ("POST", "/revert_to_snapshot", self.revert_to_snapshot),
        ]  # fmt: skip
        return shared + [Route(path, self.handled(handler), methods=[method]) for method, path, handler in table]

    def handled(self, handler: Any) -> Any:
        async def handle(request: Request) -> Response:
            self.requests.append((request.method, request.url.path))
            await self.running.wait()
            try:
                return await handler(request)
            except Exception as error:
                return JSONResponse({"status": "error", "message": str(error)}, status_code=500)

        return handle

    async def probe(self, request: Request) -> Response:
        return JSONResponse({"status": "Probe successful", "message": "Service is operational"})

    async def execute_windows(self, request: Request) -> Response:
        code = (await request.json()).get("command", "")
        said = io.StringIO()
        computer = types.SimpleNamespace(
            mouse=object(), keyboard=object(), clipboard=object(), os=object(), window_manager=object()
        )
        names = {"computer": computer, "human": object()}
        with self.guest.counted():
            await asyncio.to_thread(self._exec, code, names, said)
        if "error" in said.getvalue().lower():
            return JSONResponse({"status": "error", "message": said.getvalue()}, status_code=500)
        return JSONResponse({"status": "success"})

    def _exec(self, code: str, names: dict[str, Any], said: io.StringIO) -> None:
        with self.guest._lock:
            self.guest.execute(code, names, said)

    async def update_computer(self, request: Request) -> Response:
        await request.json()
        return JSONResponse({"status": "success"})

    async def observation(self, request: Request) -> Response:
        return JSONResponse({
            "image": base64.b64encode(self.guest.picture()).decode(), "window_title": self.guest.windows[-1],
            "rect": [0, 0, *self.guest.size], "window_names_str": "\n".join(self.guest.windows),
            "computer_clipboard": self.guest.clipboard, "human_input": None, "status": "success",
        })  # fmt: skip

    async def cursor(self, request: Request) -> Response:
        raise TypeError("The view function did not return a valid response")

    async def terminal(self, request: Request) -> Response:
        raise OSError("no terminal on Windows")

    async def accessibility(self, request: Request) -> Response:
        if request.query_params.get("backend", "uia") not in ("uia", "win32"):
            raise ValueError("unknown backend")
        names = "".join(f'<window name="{name}"/>' for name in self.guest.windows)
        return JSONResponse({"AT": f'<desktop xmlns:st="uri:deskat:state.at-spi.gnome.org">{names}</desktop>'})

    async def platform(self, request: Request) -> Response:
        return HTMLResponse("Windows")

    async def launch(self, request: Request) -> Response:
        body = await request.json()
        command = body["command"]
        self.guest.start(command)
        return HTMLResponse(f"{command} launched successfully")

    async def close_all(self, request: Request) -> Response:
        self.guest.windows = [*SHELL_WINDOWS, *self.dirty]
        return JSONResponse({"status": "success"})

    async def clear_task_files(self, request: Request) -> Response:
        for folder in ("Downloads", "Desktop", "Documents"):
            shutil.rmtree(self.guest.home / folder)
            (self.guest.home / folder).mkdir()
        return JSONResponse({"status": "success"})

    async def create_folder(self, request: Request) -> Response:
        os.makedirs(self.guest.path((await request.json())["path"]), exist_ok=True)
        return JSONResponse({"status": "success"})

    async def create_file(self, request: Request) -> Response:
        body = await request.json()
        Path(self.guest.path(body["path"])).write_text(body["content"])
        return JSONResponse({"status": "success"})

    async def recycle(self, request: Request) -> Response:
        real = Path(self.guest.path((await request.json())["path"]))
        if not real.exists():
            return HTMLResponse("Path does not exist", status_code=404)
        shutil.rmtree(real) if real.is_dir() else real.unlink()
        return HTMLResponse("Moved to the recycle bin")

    async def file_exists(self, request: Request) -> Response:
        body = await request.json()
        there = Path(self.guest.path(body["path"]), body["file_name"]).is_file()
        return JSONResponse({"message": "there" if there else "not there"}, status_code=200 if there else 400)

    async def folder_exists(self, request: Request) -> Response:
        body = await request.json()
        there = Path(self.guest.path(body["path"]), body["folder_name"]).is_dir()
        return JSONResponse({"message": "there" if there else "not there"}, status_code=200 if there else 400)

    async def documents_path(self, request: Request) -> Response:
        return JSONResponse({"documents_path": "C:\\Users\\Docker\\Documents"})

    async def revert_to_snapshot(self, request: Request) -> Response:
        return JSONResponse({"status": "error", "message": "not implemented"}, status_code=501)


class FakeEvaluate:
    """The evaluate server at port 5050. It knows exact_match of a command's output and of a file's text; its failures
    are 500."""

    def __init__(self, guest: FakeGuest, tasks: dict[str, dict[str, Any]] | None = None) -> None:
        self.guest = guest
        self.tasks = tasks or {}
        self.asked: list[dict[str, Any]] = []
        self.broken = False
        self.app = Starlette(
            routes=[
                Route("/probe", self.probe),
                Route("/task/{task}", self.task),
                Route("/setup", self.setup, methods=["POST"]),
                Route("/evaluate", self.evaluate, methods=["POST"]),
            ]
        )

    async def probe(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def task(self, request: Request) -> Response:
        found = self.tasks.get(request.path_params["task"])
        return JSONResponse(found) if found is not None else JSONResponse({"error": "Task not found"}, status_code=404)

    async def setup(self, request: Request) -> Response:
        results = []
        for step in (await request.json()).get("config", []):
            try:
                if step["type"] == "launch":
                    self.guest.start(step["parameters"]["command"])
                elif step["type"] == "create_file":
                    Path(self.guest.path(step["parameters"]["path"])).write_text(step["parameters"]["content"])
                elif step["type"] != "sleep":
                    raise ValueError(f"unknown step {step['type']}")
                results.append({"type": step["type"], "status": "ok"})
            except Exception as error:
                results.append({"type": step.get("type"), "status": "error", "message": str(error)})
        fine = all(each["status"] == "ok" for each in results)
        return JSONResponse({"status": "ok" if fine else "error", "results": results})

    async def evaluate(self, request: Request) -> Response:
        task = await request.json()
        self.asked.append(task)
        if self.broken:
            return JSONResponse({"success": False, "score": 0.0, "reason": "boom", "traceback": "..."}, status_code=500)
        evaluator = task["evaluator"]
        wanted = evaluator["expected"]["rules"]["expected"]
        result = evaluator["result"]
        if result["type"] == "vm_command_line":
            found = self.guest.run(result["command"], shell=True).stdout.decode()
        else:
            real = Path(self.guest.path(result["path"]))
            found = real.read_text() if real.exists() else None
        score = float(found == wanted)
        return JSONResponse({"success": score >= 1, "score": score, "reason": f"found {found!r}"})

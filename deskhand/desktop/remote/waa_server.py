"""The servers of Windows Agent Arena: the one in the virtual machine and the one that evaluates. Invariant: `/execute_windows` says
nothing but whether the code raised, so nothing is read from it; what is asked of the machine goes to `/execute`.
"""

from __future__ import annotations

from typing import Any

from deskhand.desktop.remote.osworld_server import OsworldServer, ServerError
from deskhand.desktop.remote.retrying_client import RetryingClient
from deskhand.errors import EvaluatorError, InfrastructureError


class WaaServer(OsworldServer):
    """What it has besides the endpoints that it shares with OSWorld's."""

    async def probe(self) -> None:
        """Raises `InfrastructureError` unless the server is up."""
        self._fine(await self.link.send("GET", "/probe", repeatable=True, parks=False), "/probe")

    async def execute_windows(self, code: str, *, may_take_s: float, repeatable: bool = False) -> None:
        """Run Python in the server's own process. Raises `ServerError` with what the code raised."""
        body = {"command": code}
        reply = await self.link.send(
            "POST", "/execute_windows", repeatable=repeatable, acts=True, may_take_s=may_take_s, json=body
        )  # fmt: skip
        self._fine(reply, "/execute_windows")

    async def observation(self) -> dict[str, Any]:
        """`/obs_winagent`: the active window's picture and title, the titles of all, the clipboard."""
        reply = await self.link.send("GET", "/obs_winagent", repeatable=True, may_take_s=20.0)
        return self._json(reply, "/obs_winagent")

    async def close_all(self) -> None:
        await self._done("/setup/close_all", may_take_s=30.0)

    async def clear_task_files(self) -> None:
        await self._done("/setup/clear_task_files", may_take_s=30.0)

    async def create_folder(self, path: str) -> None:
        await self._done("/setup/create_folder", json={"path": path})

    async def create_file(self, path: str, content: str) -> None:
        await self._done("/setup/create_file", json={"path": path, "content": content})

    async def recycle(self, path: str) -> None:
        await self._done("/setup/recycle", json={"path": path}, acts=True)

    async def is_there(self, folder: str, name: str, *, is_folder: bool = False) -> bool:
        """Whether a file or folder of a name is in a folder; the server answers 400 when it is not."""
        path, key = ("/folder_exists", "folder_name") if is_folder else ("/file_exists", "file_name")
        reply = await self._post(path, json={key: name, "path": folder})
        if reply.status_code == 400:
            return False
        self._fine(reply, path)
        return True

    async def documents_path(self) -> str:
        return str(self._json(await self._post("/documents_path"), "/documents_path").get("documents_path", ""))


class WaaEvaluatorClient:
    """The evaluate server, which runs beside the virtual machine (port 5050). What it fails at is an `EvaluatorError`, never 0."""

    def __init__(self, link: RetryingClient) -> None:
        self.link = link

    async def probe(self) -> None:
        reply = await self._send("GET", "/probe", 10.0)
        if reply.status_code != 200:
            raise EvaluatorError(f"{self.link.address}/probe: {reply.status_code}; is the evaluate server up?")

    async def task(self, task_id: str) -> dict[str, Any]:
        """The JSON of a task that the server knows."""
        return self._object(await self._send("GET", f"/task/{task_id}", 20.0), f"/task/{task_id}")

    async def setup(self, config: list[dict[str, Any]], *, may_take_s: float = 300.0) -> None:
        """Run set-up steps. Raises `InfrastructureError` naming the first that failed."""
        said = self._object(await self._send("POST", "/setup", may_take_s, json={"config": config}), "/setup")
        if said.get("status") != "ok":
            failed = [each for each in said.get("results", []) if isinstance(each, dict) and each.get("status") != "ok"]
            raise InfrastructureError(f"{self.link.address}/setup: {str(failed[:1] or said)[:400]}")

    async def evaluate(self, task: dict[str, Any], *, may_take_s: float = 180.0) -> tuple[float, str]:
        """The score in [0, 1] and why."""
        reply = await self._send("POST", "/evaluate", may_take_s, json=task)
        said = self._object(reply, "/evaluate")
        score = said.get("score")
        if isinstance(score, bool) or not isinstance(score, (int, float)) or not 0.0 <= score <= 1.0:
            raise EvaluatorError(
                f"{self.link.address}/evaluate: the score is {str(score)[:40]!r}, not a number from 0 to 1"
            )
        return float(score), str(said.get("reason", ""))[:2000]

    async def _send(self, method: str, path: str, may_take_s: float, **arguments: Any) -> Any:
        try:
            return await self.link.send(method, path, repeatable=True, may_take_s=may_take_s, **arguments)
        except InfrastructureError as error:
            raise EvaluatorError(f"{self.link.address}: the evaluate server does not answer: {error}") from error

    def _object(self, reply: Any, path: str) -> dict[str, Any]:
        server = OsworldServer(self.link)
        try:
            return server._json(reply, path)
        except ServerError as error:
            raise EvaluatorError(str(error)) from error
        except InfrastructureError as error:
            raise EvaluatorError(str(error)) from error

"""Clients of Windows Agent Arena's two servers: in the virtual machine and the evaluator.

`/execute_windows` only reports whether the code raised; queries go to `/execute`.
"""

from __future__ import annotations

from typing import Any

from deskhand.desktop.remote.osworld_server import OsworldServer
from deskhand.desktop.remote.retrying_client import RetryingClient
from deskhand.errors import EvaluatorError, InfrastructureError


class WaaServer(OsworldServer):
    """WAA's endpoints in addition to OSWorld's."""

    async def probe(self) -> None:
        """Raise `InfrastructureError` unless the server is up."""
        self._check_ok(await self.client.send("GET", "/probe", repeatable=True, wait_for_quota=False), "/probe")

    async def execute_windows(self, code: str, *, may_take_s: float, repeatable: bool = False) -> None:
        """Run Python in the server's process. Raises `ServerError` with the exception of the code."""
        request = {"command": code}
        reply = await self.client.send(
            "POST", "/execute_windows", repeatable=repeatable, acts=True, may_take_s=may_take_s, json=request
        )
        self._check_ok(reply, "/execute_windows")

    async def close_all(self) -> None:
        await self._post_ok("/setup/close_all", may_take_s=30.0)

    async def clear_task_files(self) -> None:
        await self._post_ok("/setup/clear_task_files", may_take_s=30.0)


class WaaEvaluatorClient:
    """The evaluator server next to the virtual machine. Its failures are `EvaluatorError`, never a score of 0."""

    def __init__(self, client: RetryingClient) -> None:
        self.client = client

    async def probe(self) -> None:
        reply = await self._send("GET", "/probe", 10.0)
        if reply.status_code != 200:
            raise EvaluatorError(f"{self.client.base_url}/probe: {reply.status_code}; start the evaluator server")

    async def task(self, task_id: str) -> dict[str, Any]:
        """Return the JSON of a task that the server knows."""
        return self._object(await self._send("GET", f"/task/{task_id}", 20.0), f"/task/{task_id}")

    async def setup(self, config: list[dict[str, Any]], *, may_take_s: float = 300.0) -> None:
        """Run set-up steps. Raises `InfrastructureError` with the first that failed."""
        body = self._object(await self._send("POST", "/setup", may_take_s, json={"config": config}), "/setup")
        if body.get("status") != "ok":
            failed = [each for each in body.get("results", []) if isinstance(each, dict) and each.get("status") != "ok"]
            raise InfrastructureError(f"{self.client.base_url}/setup: {str(failed[:1] or body)[:400]}")

    async def evaluate(self, task: dict[str, Any], *, may_take_s: float = 180.0) -> tuple[float, str]:
        """Return the score in [0, 1] and its reason."""
        reply = await self._send("POST", "/evaluate", may_take_s, json=task)
        body = self._object(reply, "/evaluate")
        score = body.get("score")
        if isinstance(score, bool) or not isinstance(score, (int, float)) or not 0.0 <= score <= 1.0:
            raise EvaluatorError(
                f"{self.client.base_url}/evaluate: the score must be in [0, 1], got {str(score)[:40]!r}"
            )
        return float(score), str(body.get("reason", ""))[:2000]

    async def _send(self, method: str, path: str, may_take_s: float, **arguments: Any) -> Any:
        try:
            return await self.client.send(method, path, repeatable=True, may_take_s=may_take_s, **arguments)
        except InfrastructureError as error:
            raise EvaluatorError(f"{self.client.base_url}: no reply from the evaluator server: {error}") from error

    def _object(self, reply: Any, path: str) -> dict[str, Any]:
        try:
            return OsworldServer(self.client)._json(reply, path)
        except InfrastructureError as error:
            raise EvaluatorError(str(error)) from error

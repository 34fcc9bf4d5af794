"""Clients of Windows Agent Arena's two servers: in the virtual machine and the evaluator.

`/execute_windows` only reports whether the code raised; queries go to `/execute`.
"""

from __future__ import annotations

from typing import Any

from deskhand.desktop.remote.osworld_server import OsworldServer, ServerError
from deskhand.desktop.remote.replies import json_object, server_reply
from deskhand.desktop.remote.retrying_client import Parse, RetryingClient
from deskhand.errors import EvaluatorError, InfrastructureError


class WaaServer(OsworldServer):
    """WAA's endpoints in addition to OSWorld's."""

    async def probe(self) -> None:
        """Raise `InfrastructureError` unless the server is up."""
        await self.send("GET", "/probe", server_reply, wait_for_quota=False)

    async def execute_windows(self, code: str, *, may_take_s: float, repeatable: bool = False) -> None:
        """Run Python in the server's process. Raises `ServerError` with the exception of the code."""
        settings = {"repeatable": repeatable, "acts": True, "may_take_s": may_take_s}
        await self.send("POST", "/execute_windows", json_object, json={"command": code}, **settings)

    async def close_all(self) -> None:
        await self._post("/setup/close_all", may_take_s=30.0)

    async def clear_task_files(self) -> None:
        await self._post("/setup/clear_task_files", may_take_s=30.0)


EVALUATOR_PORT = 5050
"""Port of the evaluate server on the host of a machine."""


class WaaEvaluatorClient:
    """The evaluator server next to the virtual machine. Its failures are `EvaluatorError`, never a score of 0."""

    def __init__(self, client: RetryingClient) -> None:
        self.client = client

    async def probe(self) -> None:
        await self._send("GET", "/probe", 10.0, server_reply)

    async def task(self, task_id: str) -> dict[str, Any]:
        """Return the JSON of a task that the server knows."""
        return await self._send("GET", f"/task/{task_id}", 20.0)

    async def setup(self, config: list[dict[str, Any]], *, may_take_s: float = 300.0) -> None:
        """Run set-up steps. Raises `InfrastructureError` with the first that failed."""
        body = await self._send("POST", "/setup", may_take_s, json={"config": config})
        if body.get("status") != "ok":
            results = body.get("results")
            steps = results if isinstance(results, list) else []
            failed = [each for each in steps if isinstance(each, dict) and each.get("status") != "ok"]
            raise InfrastructureError(f"{self.client.base_url}/setup: {str(failed[:1] or body)[:400]}")

    async def evaluate(self, task: dict[str, Any], *, may_take_s: float = 180.0) -> tuple[float, str]:
        """Return the score in [0, 1] and its reason."""
        body = await self._send("POST", "/evaluate", may_take_s, json=task)
        score = body.get("score")
        if isinstance(score, bool) or not isinstance(score, (int, float)) or not 0.0 <= score <= 1.0:
            raise EvaluatorError(
                f"{self.client.base_url}/evaluate: the score must be in [0, 1], got {str(score)[:40]!r}"
            )
        return float(score), str(body.get("reason", ""))[:2000]

    async def _send(
        self, method: str, path: str, may_take_s: float, parse: Parse[Any] = json_object, **arguments: Any
    ) -> Any:
        arguments |= {"repeatable": True, "may_take_s": may_take_s}
        try:
            return await OsworldServer(self.client).send(method, path, parse, **arguments)
        except ServerError as error:
            raise EvaluatorError(str(error)) from error
        except InfrastructureError as error:
            raise EvaluatorError(f"{self.client.base_url}: no reply from the evaluator server: {error}") from error

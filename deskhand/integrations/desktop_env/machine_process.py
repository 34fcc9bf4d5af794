"""Runs in an environment with `desktop-env` and controls one machine of OSWorld's providers, by JSON lines. Standard
library only.

Requests: `{"do": "start", "provider", "settings", "server"?}` creates a `DesktopEnv`, which starts the machine (with
`server`, an object with `address` and `key`, the provider's name stands for that desktop server); `{"do": "revert"}`
restores its snapshot; `{"do": "close"}` stops it. The reply is `{"address"}` or `{"error", "message"}`.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    # Python put the folder of this file first on the path, where its modules hide packages of their names:
    # `desktop_env`.
    _HERE = os.path.realpath(os.path.dirname(__file__))
    sys.path[:] = [folder for folder in sys.path if os.path.realpath(folder) != _HERE]

import importlib
import json
from typing import Any


def address_of(environment: Any) -> str:
    return f"http://{environment.vm_ip}:{environment.server_port}"


def start(request: dict[str, Any]) -> Any:
    if request.get("server"):
        from deskhand.integrations.desktop_env.server_provider import register_server_provider

        register_server_provider(request["server"]["address"], request["server"]["key"], name=request["provider"])
    return importlib.import_module("desktop_env.desktop_env").DesktopEnv(
        provider_name=request["provider"], **request["settings"]
    )


def main() -> None:
    answers, sys.stdout = sys.stdout, sys.stderr
    environment: Any = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if request["do"] == "start":
                environment = start(request)
            elif request["do"] == "revert":
                environment._revert_to_snapshot()
                environment._start_emulator()
                environment.is_environment_used = False
            else:
                environment.close()
            answer = {"address": address_of(environment) if request["do"] != "close" else ""}
        except Exception as error:
            answer = {"error": type(error).__name__, "message": str(error)}
        print(json.dumps(answer), file=answers, flush=True)
    if environment is not None:
        environment.close()


if __name__ == "__main__":
    main()

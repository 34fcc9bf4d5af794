"""Runs where `desktop-env` is installed and does what it is told, a JSON line each: a machine of OSWorld's own providers.

`{"do": "start", "provider", "settings", "bridge"?}` makes a `DesktopEnv`, which starts the machine (with `bridge`, an object with
`address` and `key`, a desktop of that bridge goes by the provider's name); `{"do": "revert"}` brings it back to its snapshot;
`{"do": "close"}` ends it. The answer is `{"address"}` or `{"error", "message"}`. It needs Python's standard library alone.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    # Python put the folder of this file first on the path, where its modules hide packages of their names: `desktop_env`.
    _HERE = os.path.realpath(os.path.dirname(__file__))
    sys.path[:] = [folder for folder in sys.path if os.path.realpath(folder) != _HERE]

import importlib
import json
from typing import Any


def address_of(environment: Any) -> str:
    return f"http://{environment.vm_ip}:{environment.server_port}"


def start(told: dict[str, Any]) -> Any:
    if told.get("bridge"):
        from deskhand.integrations.desktop_env.server_provider import register_server_provider

        register_server_provider(told["bridge"]["address"], told["bridge"]["key"], name=told["provider"])
    return importlib.import_module("desktop_env.desktop_env").DesktopEnv(
        provider_name=told["provider"], **told["settings"]
    )


def main() -> None:
    answers, sys.stdout = sys.stdout, sys.stderr
    environment: Any = None
    for line in sys.stdin:
        told = json.loads(line)
        try:
            if told["do"] == "start":
                environment = start(told)
            elif told["do"] == "revert":
                environment._revert_to_snapshot()
                environment._start_emulator()
                environment.is_environment_used = False
            else:
                environment.close()
            answer = {"address": address_of(environment) if told["do"] != "close" else ""}
        except Exception as error:
            answer = {"error": type(error).__name__, "message": str(error)}
        print(json.dumps(answer), file=answers, flush=True)
    if environment is not None:
        environment.close()


if __name__ == "__main__":
    main()

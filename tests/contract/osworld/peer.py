"""Runs in OSWorld's own environment and does what it is told, a JSON line each: the real `desktop-env`, outside the
tests.

`{"do": "make", "address", "key", "settings"}` registers the bridge (with `gateway`: a gateway) as a provider and
makes a `DesktopEnv`; `{"do": "controllers",
"address", "cache"}` makes its controllers alone; `{"do": "call", "on",
"arguments", "named"}` calls a method of it (`controller.get_file`); `{"do": "set", "on", "value"}` sets an attribute;
`{"do": "play", "path"}` plays a film: size and second of each picture. The answer is `{"value"}` or `{"error",
"message"}`, with bytes as `{"base64"}`.

Libraries that only `desktop-env`'s metrics use are not in the environment. They are replaced by modules that can be
imported and raise when they are used, so that none of it is needed and none of it is faked.
"""

from __future__ import annotations

import base64
import importlib
import importlib.abc
import importlib.machinery
import json
import sys
import types
from pathlib import Path
from typing import Any

METRICS_ONLY = frozenset(
    (
        "PIL", "PyPDF2", "acoustid", "borb", "bs4", "cv2", "docx", "easyocr", "fastdtw", "fitz", "formulas",
        "imagehash", "librosa", "mutagen", "odf", "openpyxl", "pandas", "pdfplumber", "pptx", "pydrive", "pypdf",
        "pytz", "rapidfuzz", "scipy", "skimage", "tldextract", "torch", "xmltodict", "yaml",
    )
)  # fmt: skip


class NotHere:
    """What stands for anything of a library that is not here: it raises when it is used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        raise ModuleNotFoundError(f"{self._name} is not in this environment: only metrics use it")

    def __getattr__(self, name: str) -> NotHere:
        if name.startswith("__"):
            raise AttributeError(name)
        return NotHere(f"{self._name}.{name}")

    def __or__(self, other: Any) -> Any:
        return Any

    __ror__ = __or__


class Absent(types.ModuleType):
    """A library that is not here."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return NotHere(f"{self.__name__}.{name}")


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the libraries of `METRICS_ONLY` when nobody else does."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        return (
            importlib.machinery.ModuleSpec(name, self, is_package=True) if name.split(".")[0] in METRICS_ONLY else None
        )

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return Absent(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """There is nothing in it."""


def plain(value: Any) -> Any:
    """`value` as JSON has it."""
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def resolved(root: Any, dotted: str) -> Any:
    for name in dotted.split("."):
        root = getattr(root, name)
    return root


def play(path: str) -> list[Any]:
    with importlib.import_module("av").open(path) as film:
        return [(frame.width, frame.height, float(frame.time)) for frame in film.decode(video=0)]


def controllers(address: str, cache: str) -> types.SimpleNamespace:
    """The controllers by themselves, for the server at `address`, as `DesktopEnv` makes them."""
    host, _, port = address.removeprefix("http://").partition(":")
    python = importlib.import_module("desktop_env.controllers.python").PythonController(
        vm_ip=host, server_port=int(port)
    )
    setup = importlib.import_module("desktop_env.controllers.setup").SetupController(
        vm_ip=host, server_port=int(port), chromium_port=int(port), vlc_port=int(port), cache_dir=cache
    )
    return types.SimpleNamespace(controller=python, setup=setup)


def main() -> None:
    answers, sys.stdout = sys.stdout, sys.stderr
    sys.meta_path.append(Finder())
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
    from deskhand.integrations.desktop_env.server_provider import register_server_provider

    DesktopEnv: Any = importlib.import_module("desktop_env.desktop_env").DesktopEnv
    environment: Any = None
    for line in sys.stdin:
        told = json.loads(line)
        try:
            if told["do"] == "make":
                if told.get("gateway"):
                    importlib.import_module(
                        "deskhand.integrations.desktop_env.sandbox_provider"
                    ).register_sandbox_provider(told["address"], told["key"])
                else:
                    register_server_provider(told["address"], told["key"])
                environment = DesktopEnv(provider_name="docker", **told["settings"])
                value = None
            elif told["do"] == "controllers":
                environment = controllers(told["address"], told["cache"])
                value = None
            elif told["do"] == "set":
                owner, _, name = told["on"].rpartition(".")
                setattr(resolved(environment, owner) if owner else environment, name, told["value"])
                value = None
            elif told["do"] == "play":
                value = play(told["path"])
            else:
                value = resolved(environment, told["on"])(*told["arguments"], **told["named"])
            answer = {"value": plain(value)}
        except Exception as error:
            answer = {"error": type(error).__name__, "message": str(error)}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()

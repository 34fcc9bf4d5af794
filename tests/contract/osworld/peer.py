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
import importlib.util
import json
import sys
import types
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
METRICS_ONLY = frozenset(
    (
        "PIL", "PyPDF2", "acoustid", "borb", "bs4", "cv2", "docx", "easyocr", "fastdtw", "fitz", "formulas",
        "imagehash", "librosa", "mutagen", "odf", "openpyxl", "pandas", "pdfplumber", "pptx", "pydrive", "pypdf",
        "pytz", "rapidfuzz", "scipy", "skimage", "tldextract", "torch", "xmltodict", "yaml",
    )
)  # fmt: skip


def hide_what_only_metrics_use() -> None:
    """Anything of these libraries can be imported and named in annotations; it raises when it is used."""
    spec = importlib.util.spec_from_file_location("judge_process", ROOT / "deskhand" / "osworld" / "judge_process.py")
    assert spec is not None
    assert spec.loader is not None
    process: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(process)
    process.STUBBED_LIBRARIES = METRICS_ONLY
    process.Unavailable.__or__ = process.Unavailable.__ror__ = lambda self, other: Any
    sys.meta_path.append(process.StubImporter())


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
    hide_what_only_metrics_use()
    sys.path.insert(0, str(ROOT))
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

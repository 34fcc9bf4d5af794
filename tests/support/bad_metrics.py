"""Metrics that do what a judge must survive, for the evaluators' process; the honest ones tell what they were given."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import random
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def equal(result: Any, expected: Any = None, **options: Any) -> float:
    return float(result == expected)


def same_content(path: str, other: str) -> float:
    return float(Path(path).read_bytes() == Path(other).read_bytes())


def fraction(path: str) -> float:
    """A number in [0, 1] that depends on every bit of the file, made in ways that depend on the process's random state
    and hashes.
    """
    data = Path(path).read_bytes()
    digest = int.from_bytes(
        hashlib.sha256(data + str(random.random()).encode() + str(hash("salt")).encode()).digest()[:7], "big"
    )
    time.sleep(0.02 * (digest % 5))
    return digest / 2**56


def names(paths: list[str | None], expected: list[str | None]) -> float:
    return float([path and os.path.basename(path) for path in paths] == expected)


def raises(result: Any) -> float:
    raise RuntimeError("no such sheet")


def hangs(result: Any) -> float:
    while True:
        time.sleep(1)


def hangs_with_children(result: Any) -> float:
    subprocess.run(["sleep", "3600"], check=False)
    return 1.0


def spins(result: Any) -> float:
    while True:
        pass


def spins_on_content(path: str) -> float:
    while Path(path).read_bytes():
        pass
    return 1.0


def eats_content(text: str) -> float:
    return float(len(bytearray(16 << 30 if text else 1)) > 0)


def crashes_on_content(path: str) -> float:
    if Path(path).read_bytes():
        os.abort()
    raise RuntimeError("an empty file")


def not_a_number(result: Any) -> float:
    return float("nan")


def too_much(result: Any) -> float:
    return 7.0


def nothing(result: Any) -> None:
    return None


def talks(result: Any) -> float:
    """40 MB on its output."""
    for _ in range(40):
        sys.stdout.write("x" * 1_000_000)
    return 1.0


def eats(result: Any) -> float:
    return float(len(bytearray(16 << 30)) > 0)


def dies(result: Any) -> float:
    os._exit(0)


def connects(result: Any) -> float:
    with socket.socket() as one:
        one.settimeout(2)
        one.connect(("127.0.0.1", int(result)))
    return 1.0


def reads(path: str) -> float:
    return float(bool(Path(path).read_bytes()))


def remembers(result: Any) -> float:
    """1 when an earlier judgement has left something in this process."""
    before = os.environ.get("REMEMBERED")
    os.environ["REMEMBERED"] = json.dumps(result)
    return float(before is not None)


def leaves_files(result: Any) -> float:
    """1 when an earlier judgement has left a file."""
    place = Path(os.environ.get("TMPDIR", "/tmp"))
    return float(any(place.glob("judgement-*/**/left")))


def leaves(path: str) -> float:
    Path(path).with_name("left").write_text("here")
    return 1.0


def swallows_the_network(result: Any) -> float:
    """0, as if the answer were wrong, where the network could not be had."""
    try:
        return connects(result)
    except OSError:
        return 0.0


def swallows_what_is_missing(result: Any) -> float:
    try:
        return float(bool(importlib.import_module("easyocr").Reader(["en"])))
    except Exception:
        return 0.0

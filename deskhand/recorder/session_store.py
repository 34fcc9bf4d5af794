"""Recorded sessions on disk.

Used as callbacks of `Recorder` and `ImageCache` (`SessionStore.write_call`, `write_reward`, `save_image`).

```
<folder>/images/<2 hex>/<sha256>           encoded bytes as received, named by the SHA-256 of their RGB pixels
<folder>/sessions/<name>/calls.jsonl       open session: one line per call or reward, in order
<folder>/sessions/<name>/session.json      closed session: everything but the arrays
<folder>/sessions/<name>/calls.safetensors closed session: arrays of its calls
```

`docs/recorder.md` describes the files. A kill can only tear the last line of calls.jsonl; its reply was never sent, so
it is ignored. Numbers are exact: int64 ids and versions, float64 log-probs.

Invariant: a call is on disk, with its images, before its reply is sent.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import numpy as np
from safetensors.numpy import load, save

from deskhand.errors import InfrastructureError, RecordError
from deskhand.recorder import append_log
from deskhand.recorder.graph import Call, CallGraph
from deskhand.recorder.rewards import Rewards

FORMAT = 2
_LINE_BYTES, _NUMBER_BYTES = 4000, 48
"""Maximum bytes of a call's names, and of one of its numbers."""
_REMEMBERED = 1 << 17
"""Maximum number of image names cached as stored."""
_ARRAYS = {
    "new_prompt_ids": np.int64,
    "token_ids": np.int64,
    "logprobs": np.float64,
    "versions": np.int64,
    "served_ids": np.int64,
}


def encode_arrays(graph: CallGraph) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Split a graph into its dictionary and its arrays. The arrays of each key are concatenated over the calls;
    `<key>_lengths` holds the length for each call (-1: null)."""
    data = graph.to_dict()
    arrays: dict[str, np.ndarray] = {}
    for key, dtype in _ARRAYS.items():
        parts = [call.pop(key) for call in data["calls"]]
        arrays[key] = np.array([value for part in parts if part is not None for value in part], dtype=dtype)
        arrays[f"{key}_lengths"] = np.array([-1 if part is None else len(part) for part in parts], dtype=np.int64)
    return data, arrays


def decode_arrays(data: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> CallGraph:
    """Return the graph that `encode_arrays` split."""
    calls = [dict(call) for call in data["calls"]]
    for key in _ARRAYS:
        position = 0
        for call, length in zip(calls, arrays[f"{key}_lengths"].tolist(), strict=True):
            call[key] = None if length < 0 else arrays[key][position : position + length].tolist()
            position += max(length, 0)
    return CallGraph.from_dict({**data, "calls": calls})


class SessionStore:
    """Sessions and images under `folder`. Methods are blocking; writing is thread-safe. With `durable`, writes are
    flushed to disk and survive a power failure; otherwise they survive a kill."""

    def __init__(self, folder: Path, *, durable: bool = True) -> None:
        self.folder, self.durable = folder, durable
        self._open: dict[str, _CallLog] = {}
        self._images: set[str] = set()
        self._lock = threading.Lock()
        (folder / "images").mkdir(parents=True, exist_ok=True)
        (folder / "sessions").mkdir(exist_ok=True)

    def save_image(self, sha256: str, encoded: bytes) -> None:
        """Store an image unless it exists. For `ImageCache(on_new=...)`."""
        if sha256 in self._images:
            return
        path = self._image(sha256)
        if not path.exists():
            new_folder = not path.parent.exists()
            path.parent.mkdir(exist_ok=True)
            self._write_whole(path, encoded)
            if new_folder and self.durable:
                append_log.sync_folder(path.parent.parent)
        if len(self._images) >= _REMEMBERED:
            self._images.clear()
        self._images.add(sha256)

    def image(self, sha256: str) -> bytes:
        """Return the encoded bytes as received. Raises `KeyError` for an unknown image. For `ImageCache(fetch=...)`."""
        try:
            return self._image(sha256).read_bytes()
        except FileNotFoundError:
            raise KeyError(sha256) from None

    def write_call(self, session_id: str, call: Call) -> None:
        """Append a call to its session. For `Recorder(on_call=...)`."""
        calls = self._call_log(session_id)
        with calls.lock:
            calls.add(call)

    def write_reward(self, session_id: str, reward: Mapping[str, Any]) -> None:
        """Append a reward to its session. For `Recorder(on_reward=...)`."""
        calls = self._call_log(session_id)
        with calls.lock:
            calls.append({"reward": dict(reward)})

    def finish(self, session_id: str, graph: CallGraph, rewards: Rewards) -> Path:
        """Write a closed session, remove its calls.jsonl and return its folder."""
        folder = self.session_folder(session_id)
        folder.mkdir(exist_ok=True)
        data, arrays = encode_arrays(graph)
        self._write_whole(folder / "calls.safetensors", save(arrays))
        summary = {"format": FORMAT, "session_id": session_id, "graph": data, "rewards": rewards.to_dict()}
        self._write_whole(folder / "session.json", json.dumps(summary, ensure_ascii=False, indent=1).encode())
        with self._lock:
            calls = self._open.pop(session_id, None)
        if calls is not None:
            calls.close()
        (folder / "calls.jsonl").unlink(missing_ok=True)
        return folder

    def read(self, session_id: str) -> tuple[CallGraph, Rewards]:
        """Return a closed session, or the calls so far of an open one. Raises `RecordError` if it is missing,
        unreadable or of another format."""
        folder = self.session_folder(session_id)
        try:
            if (folder / "session.json").exists():
                summary = json.loads((folder / "session.json").read_bytes())
                _check_format(folder, summary)
                arrays = load((folder / "calls.safetensors").read_bytes())
                return decode_arrays(summary["graph"], arrays), Rewards.from_dict(summary["rewards"])
            return _read_calls(folder)
        except FileNotFoundError as error:
            raise RecordError("unknown_session", f"{error.filename}: missing; no such session was recorded") from None
        except (ValueError, KeyError, TypeError) as error:
            raise RecordError("unreadable", f"{folder}: {type(error).__name__}: {str(error)[:200]}") from error

    def sessions(self) -> Iterator[tuple[str, bool]]:
        """Yield (id, whether it is closed) for each session."""
        for folder in sorted((self.folder / "sessions").iterdir()):
            ended = (folder / "session.json").exists()
            if ended or (folder / "calls.jsonl").exists():
                yield _session_id(folder), ended

    def close(self) -> None:
        """Close the open files."""
        with self._lock:
            logs, self._open = list(self._open.values()), {}
        for calls in logs:
            calls.close()

    def _image(self, sha256: str) -> Path:
        if len(sha256) != 64 or not set(sha256) <= set("0123456789abcdef"):
            raise KeyError(sha256)
        return self.folder / "images" / sha256[:2] / sha256

    def session_folder(self, session_id: str) -> Path:
        """Return the folder of a session, whether it exists or not; always inside the store."""
        name = quote(session_id, safe=" ")
        if name.startswith(".") or len(name) > 150:
            name = f"{name[:80].replace('.', '%2E')}~{hashlib.sha256(session_id.encode()).hexdigest()[:32]}"
        return self.folder / "sessions" / name

    def _call_log(self, session_id: str) -> _CallLog:
        with self._lock:
            if session_id not in self._open:
                folder = self.session_folder(session_id)
                folder.mkdir(exist_ok=True)
                try:
                    if (folder / "session.json").exists():
                        raise FileExistsError
                    self._open[session_id] = _CallLog(folder / "calls.jsonl", session_id, self.durable)
                except FileExistsError:
                    raise InfrastructureError(
                        f"{folder}: contains another session with this id; use unique session ids"
                    ) from None
            return self._open[session_id]

    def _write_whole(self, path: Path, data: bytes) -> None:
        partial = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}.partial")
        try:
            with partial.open("wb") as file:
                file.write(data)
                if self.durable:
                    file.flush()
                    os.fsync(file.fileno())
            partial.replace(path)
        except OSError:
            partial.unlink(missing_ok=True)
            raise
        if self.durable:
            append_log.sync_folder(path.parent)


class _CallLog:
    """An open calls.jsonl. A call that extends another is written without the common prefix, so files grow linearly."""

    def __init__(self, path: Path, session_id: str, durable: bool) -> None:
        self.lock = threading.Lock()
        self._graph = CallGraph()
        self._durable = durable
        self._file = append_log.open_new(path)
        try:
            self.append({"format": FORMAT, "session_id": session_id})
            if durable:
                append_log.sync_folder(path.parent)
                append_log.sync_folder(path.parent.parent)
        except OSError:  # the file has no calls yet, so the next call may try again
            self.close()
            path.unlink(missing_ok=True)
            raise

    def add(self, call: Call) -> None:
        """Append a call. Raises `RecordError("wire")` if its line is longer than its ids, log-probs and text can be."""
        entry = self._graph.dict_of(call)
        numbers = len(entry["new_prompt_ids"]) + len(call.completion.token_ids) * (2 + _width(call))
        limit = _LINE_BYTES + _NUMBER_BYTES * numbers + 8 * len(call.text) + 100 * len(entry["new_spans"])
        self.append({"call": entry}, limit)
        self._graph.add(call)

    def append(self, line: Mapping[str, Any], limit: int | None = None) -> None:
        encoded = json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        if limit is not None and len(encoded) > limit:
            raise RecordError("wire", f"a call's line has {len(encoded)} bytes, expected at most {limit}")
        append_log.append(self._file, encoded, durable=self._durable)

    def close(self) -> None:
        with self.lock:
            if self._file >= 0:
                os.close(self._file)
            self._file = -1


def _width(call: Call) -> int:
    """Return the numbers per sampled token besides log-prob and version: those of the alternatives."""
    return 2 * len(call.completion.top_logprobs[0]) if call.completion.top_logprobs else 1


def _check_format(folder: Path, head: Mapping[str, Any]) -> None:
    if head.get("format") != FORMAT:
        found = head.get("format")
        raise RecordError(
            "format", f"{folder}: session format {found}, this version reads format {FORMAT}; start a new run"
        )


def _read_calls(folder: Path) -> tuple[CallGraph, Rewards]:
    graph, rewards = CallGraph(), Rewards()
    lines = (folder / "calls.jsonl").read_bytes().split(b"\n")[:-1]
    for number, line in enumerate(lines):
        entry = json.loads(line)
        if number == 0:
            _check_format(folder, entry)
        if "call" in entry:
            graph.add_dict(entry["call"])
        elif "reward" in entry:
            rewards.replay(graph.ids, entry["reward"])
    return graph, rewards


def _session_id(folder: Path) -> str:
    for name in ("session.json", "calls.jsonl"):
        try:
            with (folder / name).open("rb") as file:
                head = json.loads(file.read() if name == "session.json" else file.readline())
            return head["session_id"]
        except (FileNotFoundError, ValueError, KeyError):
            continue
    return unquote(folder.name)

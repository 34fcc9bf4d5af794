"""Files that tasks download, by what is in them. Invariant: what is handed out has the content that was stored under its address,
and nothing is fetched while a task runs.

`blobs/<sha256>` holds a file, `addresses/<sha256 of the address>.json` says which one an address means. The cache is filled
beforehand (`deskhand tasks prefetch`); guests and judges never need the network.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

import httpx2

from deskhand.errors import ConfigError, InfrastructureError
from deskhand.tasks.formats import osworld_getters, osworld_setup_steps
from deskhand.tasks.formats.osworld import JsonTask
from deskhand.tasks.formats.requirements import is_remote

LARGEST_BYTES = 2 * 2**30
_RESOLVED = re.compile(r"^.*/resolve/[^/]+/")
Fetch = Callable[[str], bytes | None]
"""The content of an address, or None where it is not to be had."""


class FileCache:
    """The cache in `folder`, by default `default_folder()`. `uploads` is where local files that tasks name may lie, None:
    nowhere.
    """

    def __init__(self, folder: Path | None = None, *, uploads: Path | None = None) -> None:
        self.folder = folder or default_folder(os.environ)
        self._uploads = uploads

    def has(self, address: str) -> bool:
        return self._digest(address) is not None

    def data_of(self, address: str) -> bytes:
        """The content of an address. Raises `InfrastructureError` when it is not there or no longer what was stored."""
        digest = self._digest(address)
        if digest is None:
            raise InfrastructureError(f"{address} is not in {self.folder}; fill it with deskhand tasks prefetch")
        data = self._blob(digest).read_bytes()
        if hashlib.sha256(data).hexdigest() != digest:
            raise InfrastructureError(
                f"{self._blob(digest)} is damaged; remove it and run deskhand tasks prefetch again"
            )
        return data

    def store(self, address: str, data: bytes) -> str:
        """Keep the content of an address; returns its SHA-256 (hex)."""
        digest = hashlib.sha256(data).hexdigest()
        self._write(self._blob(digest), data)
        entry = {"address": address, "sha256": digest, "bytes": len(data)}
        self._write(self._entry(address), (json.dumps(entry, indent=1) + "\n").encode())
        return digest

    def upload(self, name: str) -> bytes:
        """A local file that a task names. Raises `InfrastructureError` for one outside the folder for them."""
        if self._uploads is None:
            raise InfrastructureError(
                f"{name}: the task names a file of this machine; no folder was given that it may lie in"
            )
        path = (self._uploads / name).resolve()
        if not path.is_relative_to(self._uploads.resolve()) or not path.is_file():
            raise InfrastructureError(f"{name} is no file in {self._uploads}")
        return path.read_bytes()

    def _digest(self, address: str) -> str | None:
        try:
            digest = json.loads(self._entry(address).read_text())["sha256"]
        except (OSError, ValueError, KeyError):
            return None
        return digest if self._blob(digest).is_file() else None

    def _entry(self, address: str) -> Path:
        return self.folder / "addresses" / f"{hashlib.sha256(address.encode()).hexdigest()}.json"

    def _blob(self, digest: str) -> Path:
        return self.folder / "blobs" / digest

    @staticmethod
    def _write(path: Path, data: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        partial.write_bytes(data)
        partial.replace(path)


def default_folder(environment: Mapping[str, str]) -> Path:
    """Return `files` in `$DESKHAND_CACHE_DIR` or in `deskhand` of the user's cache folder."""
    home = environment.get("XDG_CACHE_HOME") or os.path.join(environment.get("HOME", "~"), ".cache")
    return Path(environment.get("DESKHAND_CACHE_DIR") or Path(home, "deskhand"), "files")


def addresses_of(task: JsonTask) -> Iterator[str]:
    """Addresses of the web whose content a task downloads or is compared with."""
    for _, step in task.steps():
        if isinstance(step, osworld_setup_steps.DownloadStep):
            yield from (file.url for file in step.parameters.files)
    for _, getter in task.getters():
        if isinstance(getter, osworld_getters.FileGetter) and getter.type == "cloud_file":
            yield from (
                path for path in ([getter.path] if isinstance(getter.path, str) else getter.path) if is_remote(path)
            )


def fill(cache: FileCache, tasks: Iterable[JsonTask], fetch: Fetch) -> Iterator[tuple[str, str]]:
    """Store what `tasks` need and the cache has not; yields each address with what came of it: "there", "stored" or "missing"."""
    for address in dict.fromkeys(address for task in tasks for address in addresses_of(task)):
        if cache.has(address):
            yield address, "there"
        elif (data := fetch(address)) is None:
            yield address, "missing"
        else:
            cache.store(address, data)
            yield address, "stored"


def from_web(address: str) -> bytes | None:
    """Fetch an address. None when it cannot be had."""
    try:
        with httpx2.stream("GET", address, follow_redirects=True, timeout=60.0) as reply:
            reply.raise_for_status()
            data = bytearray()
            for piece in reply.iter_bytes():
                data += piece
                if len(data) > LARGEST_BYTES:
                    return None
            return bytes(data)
    except (httpx2.HTTPError, httpx2.InvalidURL):
        return None


def from_folder(folder: Path) -> Fetch:
    """What fetches from a folder: a mirror laid out as the addresses are (with or without the part up to a revision), or the cache
    folder of OSWorld's own client. Raises `ConfigError` when there is no such folder."""
    if not folder.is_dir():
        raise ConfigError(f"{folder} is no folder; give a mirror of the files, or the cache folder of OSWorld's client")
    own = {path.name.partition("_")[0]: path for path in sorted(folder.rglob("*_*")) if path.is_file()}

    def fetch(address: str) -> bytes | None:
        whole = unquote(urlsplit(address).path)
        for text in (_RESOLVED.sub("", whole), whole.lstrip("/")):
            parts = PurePosixPath(text).parts
            if parts and ".." not in parts and (path := folder.joinpath(*parts)).is_file():
                return path.read_bytes()
        found = own.get(str(uuid.uuid5(uuid.NAMESPACE_URL, address)))
        return found.read_bytes() if found is not None else None

    return fetch

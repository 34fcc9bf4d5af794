"""Content-addressed cache of the files that tasks download.

Filled by `deskhand tasks prefetch`, read during set-up and judging, so guests and judges never need the network.
`blobs/<sha256>` is a file; `urls/<sha256 of the URL>.json` names the file of a URL.

Invariant: returned content matches the stored hash, and nothing is downloaded while a task runs.
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

MAX_DOWNLOAD_BYTES = 2 * 2**30
_RESOLVED = re.compile(r"^.*/resolve/[^/]+/")
Fetch = Callable[[str], bytes | None]
"""Returns the content of a URL, or None if it is unavailable."""


class FileCache:
    """The cache in `folder` (default: `default_folder()`).

    `uploads` is the folder of local files that tasks may name; None: tasks may name none.
    """

    def __init__(self, folder: Path | None = None, *, uploads: Path | None = None) -> None:
        self.folder = folder or default_folder(os.environ)
        self._uploads = uploads

    def has(self, url: str) -> bool:
        return self._digest(url) is not None

    def read(self, url: str) -> bytes:
        """Return the content of a URL. Raises `InfrastructureError` if it is missing or damaged."""
        digest = self._digest(url)
        if digest is None:
            raise InfrastructureError(f"{url} is not in {self.folder}; run deskhand tasks prefetch")
        data = self._blob(digest).read_bytes()
        if hashlib.sha256(data).hexdigest() != digest:
            raise InfrastructureError(f"{self._blob(digest)} is damaged; delete it and run deskhand tasks prefetch")
        return data

    def store(self, url: str, data: bytes) -> str:
        """Store the content of a URL; return its SHA-256 (hex)."""
        digest = hashlib.sha256(data).hexdigest()
        self._write(self._blob(digest), data)
        entry = {"url": url, "sha256": digest, "bytes": len(data)}
        self._write(self._entry(url), (json.dumps(entry, indent=1) + "\n").encode())
        return digest

    def upload(self, name: str) -> bytes:
        """Return a local file that a task names. Raises `InfrastructureError` if it is outside the uploads folder."""
        if self._uploads is None:
            raise InfrastructureError(f"{name}: the task uploads a local file, but no uploads folder is set")
        path = (self._uploads / name).resolve()
        if not path.is_relative_to(self._uploads.resolve()) or not path.is_file():
            raise InfrastructureError(f"{name}: file not found in {self._uploads}")
        return path.read_bytes()

    def _digest(self, url: str) -> str | None:
        try:
            digest = json.loads(self._entry(url).read_text())["sha256"]
        except (OSError, ValueError, KeyError):
            return None
        return digest if self._blob(digest).is_file() else None

    def _entry(self, url: str) -> Path:
        return self.folder / "urls" / f"{hashlib.sha256(url.encode()).hexdigest()}.json"

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


def urls_of(task: JsonTask) -> Iterator[str]:
    """Yield the URLs that a task downloads or compares with."""
    for _, step in task.steps():
        if isinstance(step, osworld_setup_steps.DownloadStep):
            yield from (file.url for file in step.parameters.files)
    for _, getter in task.getters():
        if isinstance(getter, osworld_getters.FileGetter) and getter.type == "cloud_file":
            yield from (
                path for path in ([getter.path] if isinstance(getter.path, str) else getter.path) if is_remote(path)
            )


def prefetch(cache: FileCache, tasks: Iterable[JsonTask], fetch: Fetch) -> Iterator[tuple[str, str]]:
    """Store the missing files of `tasks`; yield each URL with "cached", "stored" or "missing"."""
    for url in dict.fromkeys(url for task in tasks for url in urls_of(task)):
        if cache.has(url):
            yield url, "cached"
        elif (data := fetch(url)) is None:
            yield url, "missing"
        else:
            cache.store(url, data)
            yield url, "stored"


def fetch_from_web(url: str) -> bytes | None:
    """Download a URL; None if that fails or it is larger than `MAX_DOWNLOAD_BYTES`."""
    try:
        with httpx2.stream("GET", url, follow_redirects=True, timeout=60.0) as response:
            response.raise_for_status()
            data = bytearray()
            for chunk in response.iter_bytes():
                data += chunk
                if len(data) > MAX_DOWNLOAD_BYTES:
                    return None
            return bytes(data)
    except (httpx2.HTTPError, httpx2.InvalidURL):
        return None


def fetch_from_folder(folder: Path) -> Fetch:
    """Return a function that reads from a folder: a mirror laid out like the URLs (with or without the part up to a
    revision), or the cache folder of OSWorld's client.

    Raises `ConfigError` if `folder` does not exist.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder}: folder not found")
    by_uuid = {path.name.partition("_")[0]: path for path in sorted(folder.rglob("*_*")) if path.is_file()}

    def fetch(url: str) -> bytes | None:
        whole = unquote(urlsplit(url).path)
        for text in (_RESOLVED.sub("", whole), whole.lstrip("/")):
            parts = PurePosixPath(text).parts
            if parts and ".." not in parts and (path := folder.joinpath(*parts)).is_file():
                return path.read_bytes()
        path = by_uuid.get(str(uuid.uuid5(uuid.NAMESPACE_URL, url)))
        return path.read_bytes() if path is not None else None

    return fetch

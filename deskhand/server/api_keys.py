"""Who may use the bridge. Invariant: a key is compared in constant time, as a digest; it stands in no log, address or error.

The owner's key opens everything; a lease has a key of its own, which opens that lease alone. Both come as `Authorization: Bearer`,
or as the password of `Authorization: Basic`, which is what HTTP clients send by themselves for a host that a netrc file names.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path

from deskhand.errors import ConfigError

VARIABLE = "DESKHAND_SERVER_API_KEY"
SHORTEST = 16
LONGEST_FILE = 1 << 20


def digest(key: str) -> bytes:
    """SHA-256 of a key: what is kept of it."""
    return hashlib.sha256(key.encode(errors="surrogateescape")).digest()


def key_matches(key: str, kept: bytes) -> bool:
    """Whether `kept` is the digest of `key`; takes the same time whatever they are."""
    return hmac.compare_digest(digest(key), kept)


def new_key() -> str:
    """A fresh key of 256 random bits."""
    return secrets.token_urlsafe(32)


def key_from_headers(headers: Mapping[str, str]) -> str:
    """The key that a request shows, "" for none. `headers` looks names up without case."""
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(value.strip(), validate=True).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            return ""
    return ""


def load_admin_key(file: Path | None, environment: Mapping[str, str]) -> str | None:
    """The owner's key from `file`, else from the environment, else None. Raises `ConfigError` for one that others could know."""
    if file is None:
        key, source = environment.get(VARIABLE), VARIABLE
    else:
        key, source = read_private(file), str(file)
    if key is not None and (len(key) < SHORTEST or not key.isascii() or not key.isprintable() or " " in key):
        raise ConfigError(f"the key in {source} must have {SHORTEST} or more printable ASCII characters without spaces")
    return key


def read_private(file: Path) -> str:
    """The text of a file that nobody else can read. Raises `ConfigError`."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as opened:
            mode = os.fstat(descriptor).st_mode
            data = opened.read(LONGEST_FILE + 1)
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}; write the key into it") from None
    if stat.S_ISREG(mode) and mode & 0o077:
        raise ConfigError(f"{file} can be read by others (mode {stat.S_IMODE(mode):o}); chmod 600 {file}")
    if len(data) > LONGEST_FILE:
        raise ConfigError(f"{file} has more than {LONGEST_FILE} bytes; name the file of the key or the tokens")
    return data.decode(errors="replace").strip()


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine's own."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_binding(host: str, key: str | None) -> None:
    """Raises `ConfigError` when anybody beyond this machine could connect without a key."""
    if key is None and not is_loopback(host):
        raise ConfigError(
            f"--host {host} is not loopback and there is no key; set {VARIABLE} or --key-file, or use --host 127.0.0.1"
        )

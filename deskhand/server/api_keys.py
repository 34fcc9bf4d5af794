"""API keys of the desktop server: generation, storage as digests, comparison in constant time.

The admin key opens everything; a lease key opens one lease. Requests send either as `Authorization: Bearer`, or as
the password of `Authorization: Basic`, which HTTP clients send on their own for hosts in a netrc file.

Invariant: keys never appear in logs, URLs or error messages.
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

API_KEY_ENV = "DESKHAND_SERVER_API_KEY"
MIN_KEY_LENGTH = 16
MAX_FILE_BYTES = 1 << 20


def digest(key: str) -> bytes:
    """Return the SHA-256 digest of a key; only digests are stored."""
    return hashlib.sha256(key.encode(errors="surrogateescape")).digest()


def key_matches(key: str, expected: bytes) -> bool:
    """Return whether `expected` is the digest of `key`, in constant time."""
    return hmac.compare_digest(digest(key), expected)


def new_key() -> str:
    """Return a random 256-bit key."""
    return secrets.token_urlsafe(32)


def key_from_headers(headers: Mapping[str, str]) -> str:
    """Return the key of a request, "" if it has none. `headers` must be case-insensitive."""
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
    """Return the admin key from `file` or the environment, or None. Raises `ConfigError` if it is weak or exposed."""
    if file is None:
        key, source = environment.get(API_KEY_ENV), API_KEY_ENV
    else:
        key, source = read_private_file(file), str(file)
    if key is not None and (len(key) < MIN_KEY_LENGTH or not key.isascii() or not key.isprintable() or " " in key):
        raise ConfigError(
            f"{source}: the key must have at least {MIN_KEY_LENGTH} printable ASCII characters and no spaces"
        )
    return key


def read_private_file(file: Path) -> str:
    """Return the text of a file that only its owner can read. Raises `ConfigError`."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as opened:
            mode = os.fstat(descriptor).st_mode
            data = opened.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}; write the key to this file") from None
    if stat.S_ISREG(mode) and mode & 0o077:
        raise ConfigError(f"{file}: readable by other users (mode {stat.S_IMODE(mode):o}); run chmod 600 {file}")
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(f"{file}: larger than {MAX_FILE_BYTES} bytes; pass the file with the key or the tokens")
    return data.decode(errors="replace").strip()


def is_loopback(host: str) -> bool:
    """Return whether a host name or address is a loopback one."""
    if host.lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def check_binding(host: str, key: str | None) -> None:
    """Raise `ConfigError` if other machines could connect without a key."""
    if key is None and not is_loopback(host):
        raise ConfigError(
            f"--host {host}: not a loopback address and no key is set; set {API_KEY_ENV}, or use --host 127.0.0.1"
        )

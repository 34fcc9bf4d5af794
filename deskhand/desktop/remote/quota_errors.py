"""Answers that say "not now". Invariant: a quota is told from a failure, in every form that providers give it, and only a quota.

429 in all its spellings (the status; a JSON body with `code` 429), 503 and 402 to a request for a desktop, 400 with the words of a
full pool, a WebSocket closed because of capacity, errors of vendors' SDKs. `Retry-After` comes as seconds, as an HTTP date, in
milliseconds, or with a suffix (`Retry-After-sandbox-create`).
"""

from __future__ import annotations

import email.utils
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx2

from deskhand.errors import InfrastructureError

LONGEST_S = 24 * 3600.0
"""No `Retry-After` is believed beyond this."""
FIRST_CLOSE, TRY_AGAIN_LATER = 1000, 1013
"""WebSocket close codes (RFC 6455, 7.4, and its registry)."""
_FULL = re.compile(
    r"no (?:available|free) (?:vm|desktop|sandbox|emulator|environment|worker|slot)s?\b|capacity[ _](?:is )?(?:reached|exceeded)"
    r"|quota (?:is )?(?:exceeded|reached|exhausted)|too many requests|rate limit|resource[ _]exhausted",
    re.IGNORECASE,
)
_ERROR_NAMES = re.compile(r"rate_?limit|too_?many_?requests|quota_?exce|resource_?exhausted|capacity", re.IGNORECASE)
_LONGEST_BODY = 64 << 10


@dataclass(frozen=True)
class QuotaSignal:
    """Not now. `retry_after_s` is what the provider asks to wait; None when it says nothing."""

    reason: str
    """A word or two for counting, such as "429" or "503"."""
    retry_after_s: float | None = None


class QuotaExceeded(InfrastructureError):
    """A request that was refused for want of room, and not carried out."""

    def __init__(self, capacity: QuotaSignal, about: str) -> None:
        super().__init__(f"{about}: refused for want of room ({capacity.reason})")
        self.capacity = capacity


def quota_signal_from_reply(reply: httpx2.Response, *, acquires: bool, now_s: float) -> QuotaSignal | None:
    """What a reply says of capacity; None when it says nothing of it. `acquires`: the request was for a desktop.

    `now_s` is the time since 1970, for dates. A 503 to other requests is a quota only when it says how long to wait.
    """
    status = reply.status_code
    if status < 400 and "json" not in reply.headers.get("content-type", ""):
        return None
    wait_s = retry_after(reply.headers, now_s)
    if status == 429:
        return QuotaSignal("429", wait_s)
    if status == 503 and (acquires or wait_s is not None):
        return QuotaSignal("503", wait_s)
    if status == 402 and acquires:
        return QuotaSignal("402", wait_s)
    if (status >= 400 or acquires) and len(reply.content) <= _LONGEST_BODY and (said := _said(reply, acquires)):
        return QuotaSignal(said, wait_s)
    return None


def _said(reply: httpx2.Response, acquires: bool) -> str | None:
    """By a code in the body; by words only where a desktop was asked for: others may be those of a program that was run."""
    try:
        body = reply.json()
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
        body = None
    if isinstance(body, dict) and 429 in (body.get("code"), body.get("status"), body.get("status_code")):
        return "429"
    return f"{reply.status_code} full" if acquires and reply.status_code >= 400 and _FULL.search(reply.text) else None


def quota_signal_from_close(code: int | None, reason: str) -> QuotaSignal | None:
    """What the close of a WebSocket says of capacity."""
    if code == TRY_AGAIN_LATER or _FULL.search(reason.replace("_", " ")):
        found = re.search(r"retry[ -]after[ :=]*(\d+(?:\.\d+)?)", reason, re.IGNORECASE)
        return QuotaSignal("websocket", _bounded(float(found[1])) if found else None)
    return None


def quota_signal_from_error(error: BaseException, now_s: float = 0.0) -> QuotaSignal | None:
    """What an error of a vendor's SDK says of capacity: by its status, its name, or how a WebSocket was closed."""
    if isinstance(error, QuotaExceeded):
        return error.capacity
    close: Any = getattr(error, "rcvd", None) or error
    code, why = getattr(close, "code", None), getattr(close, "reason", None)
    if (
        isinstance(code, int)
        and code >= FIRST_CLOSE
        and isinstance(why, str)
        and (closed := quota_signal_from_close(code, why))
    ):
        return closed
    reply: Any = getattr(error, "response", None)
    statuses = [getattr(each, name, None) for each in (error, reply) for name in ("status_code", "status", "code")]
    named = any(_ERROR_NAMES.search(kind.__name__) for kind in type(error).__mro__)
    if 429 not in statuses and not named:
        return None
    headers = getattr(reply, "headers", None) or getattr(error, "headers", None) or {}
    wait_s = retry_after(headers, now_s) if isinstance(headers, Mapping) else None
    told = getattr(error, "retry_after", None)
    if wait_s is None and isinstance(told, (int, float)) and not isinstance(told, bool):
        wait_s = _bounded(float(told))
    return QuotaSignal("429" if 429 in statuses else type(error).__name__, wait_s)


def retry_after(headers: Mapping[str, str], now_s: float) -> float | None:
    """Seconds to wait by the `Retry-After` headers, the longest of them; None when there is none that can be read."""
    found = [
        seconds
        for name, value in headers.items()
        if name.lower().startswith("retry-after")
        for seconds in [_seconds(name.lower(), str(value).strip(), now_s)]
        if seconds is not None
    ]
    return max(found, default=None)


def _seconds(name: str, value: str, now_s: float) -> float | None:
    try:
        number = float(value)
    except ValueError:
        try:
            return _bounded(email.utils.parsedate_to_datetime(value).timestamp() - now_s)
        except (ValueError, TypeError, IndexError, OverflowError):
            return None
    return _bounded(number / 1000 if name.endswith("-ms") else number)


def _bounded(seconds: float) -> float | None:
    return min(max(0.0, seconds), LONGEST_S) if seconds == seconds else None

"""Recognition of quota refusals in HTTP replies, WebSocket closes and SDK errors.

Used by `retrying_client` and `sandbox_desktop`. Quotas must not be confused with failures: recognized are 429 in all
forms (status; JSON `code` 429), 503 and 402 to a request for a desktop, 400 with the wording of a full pool,
WebSocket closes for capacity, and rate-limit errors of SDKs. `Retry-After` may be seconds, an HTTP date,
milliseconds, or suffixed (`Retry-After-sandbox-create`). Dates count from the reply's own `Date`, not from this
machine's clock.
"""

from __future__ import annotations

import email.utils
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx2

from deskhand.errors import InfrastructureError

MAX_RETRY_AFTER_S = 24 * 3600.0
"""A `Retry-After` beyond this counts as unreadable."""
MIN_CLOSE_CODE, TRY_AGAIN_LATER = 1000, 1013
"""WebSocket close codes (RFC 6455, 7.4, and its registry)."""
_FULL = re.compile(
    r"no (?:available|free) (?:vm|desktop|sandbox|emulator|environment|worker|slot)s?\b|"
    r"capacity[ _](?:is )?(?:reached|exceeded)"
    r"|quota (?:is )?(?:exceeded|reached|exhausted)|too many requests|rate limit|resource[ _]exhausted",
    re.IGNORECASE,
)
_ERROR_NAMES = re.compile(r"rate_?limit|too_?many_?requests|quota_?exce|resource_?exhausted|capacity", re.IGNORECASE)
_MAX_BODY_BYTES = 64 << 10


@dataclass(frozen=True)
class QuotaSignal:
    """A quota refusal. `retry_after_s` is the wait that the provider requests, None without one."""

    reason: str
    """Short label for counting, e.g. "429"."""
    retry_after_s: float | None = None


class QuotaExceeded(InfrastructureError):
    """A request was refused because of a quota and not performed."""

    def __init__(self, signal: QuotaSignal, about: str) -> None:
        super().__init__(f"{about}: quota exceeded ({signal.reason})")
        self.signal = signal


def quota_signal_from_reply(reply: httpx2.Response, *, acquires: bool, now_s: float) -> QuotaSignal | None:
    """Return the quota refusal in a reply, or None. `acquires`: the request was for a desktop.

    `now_s` is seconds since 1970, for dates. A 503 to other requests is a quota only with `Retry-After`.
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
    reason = None
    if (status >= 400 or acquires) and len(reply.content) <= _MAX_BODY_BYTES:
        reason = _reason_in_body(reply, acquires)
    return QuotaSignal(reason, wait_s) if reason else None


def _reason_in_body(reply: httpx2.Response, acquires: bool) -> str | None:
    """Wording counts only for desktop requests: other bodies may contain the output of programs."""
    try:
        body = reply.json()
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
        body = None
    if isinstance(body, dict) and 429 in (body.get("code"), body.get("status"), body.get("status_code")):
        return "429"
    return f"{reply.status_code} full" if acquires and reply.status_code >= 400 and _FULL.search(reply.text) else None


def quota_signal_from_close(code: int | None, reason: str) -> QuotaSignal | None:
    """Return the quota refusal in the close of a WebSocket, or None."""
    if code == TRY_AGAIN_LATER or _FULL.search(reason.replace("_", " ")):
        found = re.search(r"retry[ -]after[ :=]*(\d+(?:\.\d+)?)", reason, re.IGNORECASE)
        return QuotaSignal("websocket", _bounded(float(found[1])) if found else None)
    return None


def quota_signal_from_error(error: BaseException, now_s: float = 0.0) -> QuotaSignal | None:
    """Return the quota refusal in an SDK's error, by status, class name or WebSocket close; None otherwise."""
    if isinstance(error, QuotaExceeded):
        return error.signal
    close: Any = getattr(error, "rcvd", None) or error
    code, reason = getattr(close, "code", None), getattr(close, "reason", None)
    if (
        isinstance(code, int)
        and code >= MIN_CLOSE_CODE
        and isinstance(reason, str)
        and (closed := quota_signal_from_close(code, reason))
    ):
        return closed
    reply: Any = getattr(error, "response", None)
    statuses = [getattr(each, name, None) for each in (error, reply) for name in ("status_code", "status", "code")]
    has_quota_name = any(_ERROR_NAMES.search(kind.__name__) for kind in type(error).__mro__)
    if 429 not in statuses and not has_quota_name:
        return None
    headers = getattr(reply, "headers", None) or getattr(error, "headers", None) or {}
    wait_s = retry_after(headers, now_s) if isinstance(headers, Mapping) else None
    seconds = getattr(error, "retry_after", None)
    if wait_s is None and isinstance(seconds, (int, float)) and not isinstance(seconds, bool):
        wait_s = _bounded(float(seconds))
    return QuotaSignal("429" if 429 in statuses else type(error).__name__, wait_s)


def retry_after(headers: Mapping[str, str], now_s: float) -> float | None:
    """Return the longest wait in the `Retry-After` headers in seconds, or None.

    `now_s` is for replies without a readable `Date`.
    """
    pairs = headers.multi_items() if isinstance(headers, httpx2.Headers) else headers.items()
    values = [(name.lower(), str(value).strip()) for name, value in pairs]
    sent_at = next((_timestamp(value) for name, value in values if name == "date"), None)
    now_s = now_s if sent_at is None else sent_at
    found = [_seconds(name, value, now_s) for name, value in values if name.startswith("retry-after")]
    return max((seconds for seconds in found if seconds is not None), default=None)


def _seconds(name: str, value: str, now_s: float) -> float | None:
    try:
        number = float(value)
    except ValueError:
        due = _timestamp(value)
        return None if due is None else _bounded(due - now_s)
    return _bounded(number / 1000 if name.endswith("-ms") else number)


def _timestamp(value: str) -> float | None:
    """Return an HTTP date as seconds since 1970, None if it is not one."""
    try:
        return email.utils.parsedate_to_datetime(value).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError, OSError):
        return None


def _bounded(seconds: float) -> float | None:
    """Return at least 0; None for what is not finite or longer than `MAX_RETRY_AFTER_S`."""
    return max(0.0, seconds) if seconds <= MAX_RETRY_AFTER_S and math.isfinite(seconds) else None

"""Sampling seeds of model calls.

Invariant: a seed depends only on run, task, attempt and step, so no random state is stored and reruns sample the same.
"""

from __future__ import annotations

import hashlib


def call_seed(*parts: int | str) -> int:
    """Return a seed from the SHA-256 of the parts, below 2**53 so that JSON readers preserve it."""
    digest = hashlib.sha256("\n".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 11

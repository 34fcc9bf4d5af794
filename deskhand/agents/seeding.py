"""What a policy draws by. Invariant: the seed of a model call is a function of its run, task, try and place in the episode, so
nothing random has to be kept over a kill: what is played again, or later than it would have been, draws as it would have drawn.
"""

from __future__ import annotations

import hashlib


def call_seed(*parts: int | str) -> int:
    """A seed below 2**53 (every JSON reader keeps it) from the SHA-256 of the parts; other parts give another one."""
    digest = hashlib.sha256("\n".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 11

"""Removal of secrets from the texts of stored and exported episodes. Used by `run` and `export` if the user asks.

`Scrubber` knows the forms of common keys and tokens, passwords behind their names, credentials in URLs, private keys,
mail addresses and payment card numbers; further regular expressions; and the values of named environment variables. It
searches text: what a screenshot shows, and what token ids spell, it cannot find. Stored episodes keep both, because
training resumes from them; exports leave both out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from deskhand.errors import ConfigError

SCRUBBED = "[scrubbed]"
MIN_VALUE = 6
"""Shorter values of environment variables would match words."""
_KEPT = frozenset({
    "id", "episode_id", "task_id", "group_id", "family", "parent", "new_spans", "frame_sha256", "last_frame_sha256",
    "type", "kind", "cause", "state", "phase", "split", "stop_reason", "finish_reason",
})  # fmt: skip
"""Keys of a record whose values are names, not text."""
_WHOLE = (
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*",
    r"\bsk-[A-Za-z0-9_-]{16,}",
    r"\b[spr]k_(?:live|test)_[A-Za-z0-9]{12,}",
    r"\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_\w{20,}|\bglpat-[\w-]{16,}",
    r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
    r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}",
    r"\bAIza[\w-]{30,}",
    r"\bhf_[A-Za-z0-9]{20,}",
    r"\b[\w.+-]+@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,}\b",
)
_BEHIND = (
    r"(?i)(\b(?:bearer|basic)\s+)[\w.~+/=-]{8,}",
    r"(?i)(\b\w*(?:password|passwd|passphrase|secret|token|api[_-]?key|access[_-]?key)[\"']?\s*[:=]\s*[\"']?)[^\s\"'{},;]+",
    r"(\b[a-z][a-z0-9+.-]*://[^\s/:@]+:)[^\s/@]+(?=@)",
)
"""The first group is kept."""
_CARD = re.compile(r"(?<![\d.])\d(?:[ -]?\d){12,18}(?![\d.])")


class Scrubber:
    """Replaces secrets by `SCRUBBED`. `patterns`: further regular expressions; `variables`: environment variables.

    Raises `ConfigError` for an invalid expression. Values of variables are read at each call and stored nowhere.
    """

    def __init__(self, patterns: Iterable[str] = (), variables: Sequence[str] = ()) -> None:
        try:
            self._whole = [re.compile(pattern, re.DOTALL) for pattern in (*_WHOLE, *patterns)]
        except re.error as error:
            raise ConfigError(f"tracking.scrub_patterns: {error.pattern!r} is no regular expression: {error}") from None
        self._behind = [re.compile(pattern) for pattern in _BEHIND]
        self._variables = tuple(variables)

    def text(self, text: str) -> str:
        """Return the text without secrets."""
        values = [os.environ.get(name, "") for name in self._variables]
        for value in sorted((value for value in values if len(value) >= MIN_VALUE), key=len, reverse=True):
            text = text.replace(value, SCRUBBED)
        for pattern in self._whole:
            text = pattern.sub(SCRUBBED, text)
        for pattern in self._behind:
            text = pattern.sub(rf"\1{SCRUBBED}", text)
        return _CARD.sub(lambda found: SCRUBBED if _is_card(found[0]) else found[0], text)

    def value(self, value: Any) -> Any:
        """Return a copy of JSON content without secrets in its texts. Names (`_KEPT`) stay as they are."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {
                self.text(key): inner if key in _KEPT and not isinstance(inner, Mapping) else self.value(inner)
                for key, inner in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.value(inner) for inner in value]
        return value


def scrubber_of(metadata: Mapping[str, Any]) -> Scrubber | None:
    """Return the scrubber that a run's metadata ask for under "scrub"."""
    asked = metadata.get("scrub")
    return None if asked is None else Scrubber(asked.get("patterns", ()), asked.get("variables", ()))


def _is_card(text: str) -> bool:
    """Return whether the digits fulfil Luhn's rule."""
    digits = [int(character) for character in text if character.isdigit()][::-1]
    return sum(digits[::2]) % 10 == -sum(sum(divmod(2 * digit, 10)) for digit in digits[1::2]) % 10

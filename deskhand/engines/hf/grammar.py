"""Constrained sampling with llguidance. Used by `hf.engine`.

Unsupported constructs, such as look-ahead, are rejected. Ids are masked after log-probs are taken, so log-probs stay as
`Sampling` defines them.

Invariant: an id is allowed only if the text can still match, and a stop id only if it matches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer

from deskhand.types import Grammar, UnsupportedGrammar

_BLANKS = r"[ \n\t]{0,20}"
"""White space between JSON tokens, bounded so that a reply ends."""


class GrammarState:
    """State of one reply in its grammar."""

    def __init__(self, matcher: Any, stop_ids: Sequence[int], vocabulary: int) -> None:
        self._matcher, self._stop_ids, self._vocabulary = matcher, list(stop_ids), vocabulary

    def allowed(self) -> np.ndarray:
        """Return bool[vocabulary], the ids that may be sampled next."""
        mask = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        allowed = np.unpackbits(mask, bitorder="little", count=self._vocabulary).astype(bool)
        allowed[self._stop_ids] = self._matcher.is_accepting()
        return allowed

    def take(self, token_id: int) -> None:
        """Add a sampled id."""
        if token_id not in self._stop_ids:
            self._matcher.consume_token(token_id)


class GrammarCompiler:
    """Compiles grammars for one tokenizer. `vocabulary` is the size of the model's output."""

    def __init__(self, tokenizer: Any, vocabulary: int) -> None:
        self._text = tokenizer.backend_tokenizer.to_str()
        self._vocabulary = vocabulary
        self._by_stops: dict[tuple[int, ...], Any] = {}

    def start(self, grammar: Grammar, stop_ids: Sequence[int]) -> GrammarState:
        """Compile a grammar. Raises `UnsupportedGrammar`, also if there are no stop ids."""
        if not stop_ids:
            raise UnsupportedGrammar("a grammar needs stop ids to end the reply")
        stops = tuple(sorted(stop_ids))
        if stops not in self._by_stops:
            self._by_stops[stops] = LLTokenizer(self._text, n_vocab=self._vocabulary, eos_token=list(stops))
        if grammar.kind == "json_schema":
            try:
                source = LLMatcher.grammar_from_json_schema(grammar.text, overrides={"whitespace_pattern": _BLANKS})
            except ValueError as error:
                raise UnsupportedGrammar(f"the JSON Schema is not JSON: {error}") from None
        else:
            source = LLMatcher.grammar_from_regex(grammar.text)
        matcher = LLMatcher(self._by_stops[stops], source, log_level=0)
        if matcher.is_error():
            kind = "JSON Schema" if grammar.kind == "json_schema" else "regular expression"
            raise UnsupportedGrammar(f"unsupported {kind}: {' '.join(matcher.get_error().split())[:300]}")
        return GrammarState(matcher, stops, self._vocabulary)

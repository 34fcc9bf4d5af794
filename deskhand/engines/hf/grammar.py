"""What a grammar lets a reply go on with. Invariant: an id is offered only if some ending of the text then matches, and a stop id
only where the text matches already.

llguidance does the work (it compiles in a millisecond, needs no other package and knows JSON Schema and regular expressions
alike); what it does not support, such as looking ahead, is refused and never ignored. Ids are masked after log-probs
are taken, so these stay those of `Sampling`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer

from deskhand.types import Grammar, UnsupportedGrammar

_BLANKS = r"[ \n\t]{0,20}"
"""White space between the tokens of JSON; without a bound a reply of nothing else would never end."""


class GrammarState:
    """How far a reply has come in its grammar."""

    def __init__(self, matcher: Any, stop_ids: Sequence[int], vocabulary: int) -> None:
        self._matcher, self._stop_ids, self._vocabulary = matcher, list(stop_ids), vocabulary

    def allowed(self) -> np.ndarray:
        """bool[vocabulary]: the ids that may be sampled next."""
        mask = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        allowed = np.unpackbits(mask, bitorder="little", count=self._vocabulary).astype(bool)
        allowed[self._stop_ids] = self._matcher.is_accepting()
        return allowed

    def take(self, token_id: int) -> None:
        """The reply goes on with this id."""
        if token_id not in self._stop_ids:
            self._matcher.consume_token(token_id)


class GrammarCompiler:
    """Makes matchers for one tokenizer. `vocabulary`: ids that the model scores."""

    def __init__(self, tokenizer: Any, vocabulary: int) -> None:
        self._text = tokenizer.backend_tokenizer.to_str()
        self._vocabulary = vocabulary
        self._by_stops: dict[tuple[int, ...], Any] = {}

    def start(self, grammar: Grammar, stop_ids: Sequence[int]) -> GrammarState:
        """Raises `UnsupportedGrammar` when llguidance cannot follow the grammar, or when there is no stop id to end a reply with."""
        if not stop_ids:
            raise UnsupportedGrammar("a grammar needs stop ids, so that the reply can end where it matches")
        stops = tuple(sorted(stop_ids))
        if stops not in self._by_stops:
            self._by_stops[stops] = LLTokenizer(self._text, n_vocab=self._vocabulary, eos_token=list(stops))
        if grammar.kind == "json_schema":
            try:
                source = LLMatcher.grammar_from_json_schema(grammar.text, overrides={"whitespace_pattern": _BLANKS})
            except ValueError as error:
                raise UnsupportedGrammar(f"the JSON Schema is no JSON: {error}") from None
        else:
            source = LLMatcher.grammar_from_regex(grammar.text)
        matcher = LLMatcher(self._by_stops[stops], source, log_level=0)
        if matcher.is_error():
            kind = "JSON Schema" if grammar.kind == "json_schema" else "regular expression"
            raise UnsupportedGrammar(f"the {kind} cannot be kept to: {' '.join(matcher.get_error().split())[:300]}")
        return GrammarState(matcher, stops, self._vocabulary)

"""Secrets do not reach the texts of stored and exported episodes if the user asks for it, and nothing else changes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import episode_results
import pytest

from deskhand.errors import ConfigError
from deskhand.rollout.episode_record import from_record, to_record
from deskhand.rollout.run_writer import row_of
from deskhand.store.export import export_run
from deskhand.store.run import TRAIN, EpisodeRow, Run
from deskhand.store.scrub import SCRUBBED, Scrubber

SECRETS = {
    "a key of a model's endpoint": "sk-" + "proj-9aB" * 4,
    "a token of a repository": "ghp_" + "Ab12" * 9,
    "a key of a cloud": "AKIA" + "ABCDEFGH12345678",
    "a signed token": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
    "a mail address": "ada.lovelace+desk@mail.example.org",
    "a card": "4111 1111 1111 1111",
    "a card without gaps": "5555555555554444",
    "a private key": "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEA\n-----END RSA PRIVATE KEY-----",
    "a token of a hub": "hf_" + "abcDEF12" * 4,
}
BEHIND = {
    "password: hunter22": "password: ",
    '{"api_key": "abc123def"}': '{"api_key": "',
    "export DB_PASSWORD=tr0ub4dor&3": "export DB_PASSWORD=",
    "Authorization: Bearer abcdef123456": "Authorization: Bearer ",
    "https://ada:lovelace@host/path": "https://ada:",
}
HARMLESS = (
    "Click the blue square at (512, 300), then type 20 tokens and press ctrl+s",
    "4111 1111 1111 1112 is no card; 2026-11-22 21:49:42.123456 is a time; v1.2.3 a version",
    '{"type": "click", "x": 0.123456789012345678, "y": 0.5}',
    "a" * 64,
    "see https://example.org/a:b@c and secrets of the trade",
    "1234567890123456789012345678901234567890",
)


@pytest.mark.parametrize("name", SECRETS)
def test_what_has_the_form_of_a_secret_is_replaced_where_it_stands(name: str) -> None:
    secret = SECRETS[name]
    for text in (secret, f"type {secret} there", f'{{"text": "{secret}"}}', f"({secret})"):
        assert Scrubber().text(text) == text.replace(secret, SCRUBBED)


@pytest.mark.parametrize("text", BEHIND)
def test_what_stands_behind_the_name_of_a_secret_is_replaced(text: str) -> None:
    found = Scrubber().text(text)
    assert found.startswith(BEHIND[text] + SCRUBBED), found
    if text.startswith("{"):
        assert found == '{"api_key": "[scrubbed]"}'


@pytest.mark.parametrize("text", HARMLESS)
def test_other_text_stays_as_it_is(text: str) -> None:
    assert Scrubber().text(text) == text


def test_values_of_variables_and_own_patterns_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    scrubber = Scrubber([r"EMP-\d{4}"], ["OF_MINE", "TOO_SHORT", "UNSET"])
    monkeypatch.setenv("OF_MINE", "correct horse")
    monkeypatch.setenv("TOO_SHORT", "a")
    assert scrubber.text("a correct horse of EMP-1234") == f"a {SCRUBBED} of {SCRUBBED}"
    with pytest.raises(ConfigError, match=r"tracking\.scrub_patterns"):
        Scrubber(["("])


SECRET = SECRETS["a key of a model's endpoint"]


def put(run: Run) -> tuple[dict[str, Any], bytes]:
    """An episode whose instruction, a reply, a typed text and the judge's message have a secret."""
    result = episode_results.result(None, episode_id="one")
    record, tensors = to_record(result)
    record["instruction"] = f"log in with {SECRET}"
    record["outcome"]["message"] = f"no answer for {SECRET}"
    record["transcript"]["steps"][0]["text"] = f'{{"type": "type", "text": "{SECRET}"}}'
    record["transcript"]["steps"][0]["ops"] = [{"type": "Type", "text": SECRET}]
    record["graph"]["calls"][0]["text"] = f"typing {SECRET}"
    run.start_episode(EpisodeRow("one", TRAIN, None, 0, "t/1", "t", 1, "train", "in_flight", started_at=time.time()))
    run.finish_episode(row_of(result, TRAIN, "errored"), record, tensors)
    return record, tensors


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Run]:
    return lambda **metadata: Run.create(tmp_path / "run", {"title": f"run with {SECRET}", **metadata})


def test_stored_episodes_have_no_secret_and_lose_nothing_else(make: Callable[..., Run]) -> None:
    with make(scrub={"patterns": [], "variables": []}) as run:
        record, tensors = put(run)
        stored, arrays = run.episode("one")[1:]
    assert SECRET not in json.dumps(stored)
    assert arrays == tensors
    assert json.loads(json.dumps(record).replace(SECRET, SCRUBBED)) == stored
    assert from_record(stored, arrays).instruction == f"log in with {SCRUBBED}"


def test_without_the_option_an_episode_is_stored_as_it_is(make: Callable[..., Run]) -> None:
    with make() as run:
        record, _ = put(run)
        assert run.episode("one")[1] == record


def test_a_scrubbed_export_has_no_secret_in_any_file(make: Callable[..., Run], tmp_path: Path) -> None:
    with make() as run:
        put(run)
        assert export_run(run, tmp_path / "out", scrub=True) == 1
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert {path.name for path in files} == {"episodes.jsonl", "run.json", "metrics.jsonl"}
    assert all(SECRET.encode() not in path.read_bytes() for path in files)
    assert SCRUBBED in (tmp_path / "out" / "episodes.jsonl").read_text()

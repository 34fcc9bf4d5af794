"""Fuzzing: no request causes a server error, and the session keeps working."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import chat_templates
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recording import ADMIN, ScriptedEngine, bearer
from request_bodies import BODIES, PICTURE
from transformers import PreTrainedTokenizerFast

from deskhand.recorder.images import ImageCache
from deskhand.recorder.recorder import Recorder
from deskhand.recorder.renderer import ChatRenderer
from deskhand.recorder.server import create_app, in_process_client

ROOT = Path(__file__).parents[2]
EXAMPLES = int(os.environ.get("DESKHAND_TEST_FUZZ_EXAMPLES", "250"))
"""How many requests are made up for each test; set the variable to look longer."""
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    | st.sampled_from(["", "assistant", "tool", "\ud800", PICTURE, "data:image/png;base64,AAAA", "<|im_end|>", "{"])
    | st.sampled_from([-1, 0, 2**70, 1e308])
)  # fmt: skip
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a body, as a path of keys and indices."""
    yield path
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(inner, (*path, key))


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, Any]:
    """A path and a body: a good one with up to three places dropped, doubled or replaced, or anything at all."""
    path = draw(st.sampled_from(sorted(BODIES)))
    if draw(st.integers(0, 9)) == 0:
        return path, draw(ANYTHING)
    body = json.loads(json.dumps(BODIES[path]))
    for key in draw(st.lists(st.sampled_from(sorted(body)), max_size=len(body))):
        body.pop(key, None)
    for _ in range(draw(st.integers(0, 3))):
        *parents, last = draw(st.sampled_from(list(places(body)))) or (None,)
        if last is None:
            continue
        place = body
        for key in parents:
            place = place[key]
        action = draw(st.sampled_from(["drop", "double", "replace", "add"]))
        if action == "drop":
            del place[last]
        elif action == "double" and isinstance(place, list):
            place.append(place[last])
        elif action == "add" and isinstance(place, dict):
            place[draw(st.text(max_size=8))] = draw(SCALARS)
        else:
            place[last] = draw(ANYTHING)
    return path, body


@pytest.fixture(scope="module")
def fuzzed(tokenizer: PreTrainedTokenizerFast, image_processor: Any) -> Any:
    """A renderer with tools and an image processor, made once."""
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.chat_template = chat_templates.HERMES_TOOLS
    return ChatRenderer(tokenizer), image_processor


async def sent(renderer: ChatRenderer, processor: Any, path: str, content: bytes) -> tuple[int, str]:
    recorder = Recorder(renderer, ScriptedEngine(), ImageCache(processor), context_tokens=2000)
    key = recorder.open_session("s")
    headers = {"authorization": f"Bearer {ADMIN if path == '/sessions' else key}"}
    ask = {"messages": [{"role": "user", "content": "go"}], "max_tokens": 4}
    async with in_process_client(create_app(recorder, ADMIN, default_max_tokens=6)) as http:
        await http.post("/v1/chat/completions", json=ask, headers=headers | bearer(key))
        answer = await http.post(path, content=content, headers=headers)
        again = await http.post("/v1/chat/completions", json=ask, headers=bearer(key))
        assert again.status_code == 200, again.text
    recorder.close_session("s").sequences()
    recorder.close()
    return answer.status_code, answer.text


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(requests())
def test_no_json_makes_a_server_error(fuzzed: Any, request_made: tuple[str, Any]) -> None:
    path, body = request_made
    status, text = asyncio.run(sent(*fuzzed, path, json.dumps(body).encode()))
    assert status < 500, text


@settings(max_examples=EXAMPLES // 2, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(sorted(BODIES)), st.data())
def test_no_bytes_make_a_server_error(fuzzed: Any, path: str, data: st.DataObject) -> None:
    good = json.dumps(BODIES[path]).encode()
    start = data.draw(st.integers(0, len(good)))
    end = data.draw(st.integers(start, min(len(good), start + 40)))
    raw = good[:start] + data.draw(st.binary(max_size=12)) + good[end:]
    status, text = asyncio.run(sent(*fuzzed, path, raw))
    assert status < 500, text


@pytest.mark.parametrize(
    "nested", [b"[" * 100_000, b'{"a":' * 5000 + b"1" + b"}" * 5000, b'{"max_tokens": NaN}', b'{"n": 1e999}']
)
def test_hostile_json_is_rejected(fuzzed: Any, nested: bytes) -> None:
    for path in BODIES:
        status, text = asyncio.run(sent(*fuzzed, path, nested))
        assert status in (400, 413), text


@settings(max_examples=EXAMPLES // 2, deadline=None)
@given(
    st.sampled_from(["GET", "POST", "PUT", "DELETE"]),
    st.text(st.characters(codec="ascii", categories=["L", "N", "P"]), max_size=20),
)
def test_no_path_or_key_makes_a_server_error(fuzzed: Any, method: str, path: str) -> None:
    renderer, processor = fuzzed
    recorder = Recorder(renderer, ScriptedEngine(), ImageCache(processor))

    async def ask() -> list[int]:
        async with in_process_client(create_app(recorder, ADMIN)) as http:
            paths = [
                f"/{quote(path)}",
                f"/sessions/{quote(path)}",
                f"/sessions/{quote(path)}/end",
                f"/v1/{quote(path)}",
            ]
            return [
                (await http.request(method, one, headers={"authorization": f"Bearer {quote(path)}"})).status_code
                for one in paths
            ]

    assert all(status in (400, 401, 404, 405) or (status == 200 and path == "health") for status in asyncio.run(ask()))


RUNS = EXAMPLES * 4


def test_coverage_guided_fuzzing_finds_no_server_error(tmp_path: Path) -> None:
    """`tests/support/fuzzed_endpoint.py` says what an input may not do. DESKHAND_TEST_FUZZ_EXAMPLES makes it longer."""
    pytest.importorskip("atheris", reason="atheris has no build for this Python or processor")
    words = [
        sys.executable,
        str(ROOT / "tests" / "support" / "fuzzed_endpoint.py"),
        str(RUNS),
        "7",
        str(tmp_path / "inputs"),
    ]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests' / 'support'}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    statuses = {int(status): count for status, count in json.loads(done.stdout.splitlines()[-1]).items()}
    assert sum(statuses.values()) == RUNS
    assert statuses[200] > RUNS / 50, "some of what is made up must still be good requests"
    assert statuses[400] > 0
    assert {401, 403} <= set(statuses)
    assert max(statuses) < 500

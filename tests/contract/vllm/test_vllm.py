"""The recorder and the trainer against a real vLLM: what it serves is what is recorded, and its log-probs are those
that are trained on.

The tests share one server and run in the order in which they stand: weights are published in the middle, and near the
end the server is killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openai
import psutil
import pytest
import torch
from recording import image_part, png, text_part
from vllm_serving import PATIENCE, Served, serving

from deskhand.engines.http_engine.image_encoding import ImageEncoder
from deskhand.engines.http_engine.protocol import RetryRequest
from deskhand.engines.vllm.prompt_scorer import PromptScorer
from deskhand.errors import AgentError, ConfigError
from deskhand.models.load import load
from deskhand.recipes.teacher import probe_texts
from deskhand.recorder.graph import Call, CallGraph
from deskhand.recorder.messages import ImagePart, message
from deskhand.recorder.recorder import Recorder
from deskhand.recorder.server import create_app, in_process_client
from deskhand.trainer.policy import Policy
from deskhand.types import Grammar, Prompt, Sampling, UnsupportedGrammar

pytestmark = pytest.mark.asyncio(loop_scope="session")
BAR = 1e-2


async def play(client: openai.AsyncOpenAI, seed: int, turns: int, pictures: bool) -> None:
    """Turns of one episode at temperature 0.8; with pictures, each turn shows a screen, of a size that must be resized
    as well."""
    talk: list[dict[str, Any]] = []
    for turn in range(turns):
        parts = [text_part(f"Click the blue box {seed} {turn}")]
        if pictures:
            width, height = (256, 192) if turn % 2 else (250, 187)
            parts.insert(0, image_part(png(seed * 10 + turn, width, height)))
        talk.append({"role": "user", "content": parts})
        reply = await client.chat.completions.create(model="m", messages=talk, max_tokens=8, temperature=0.8, seed=seed)
        talk.append(reply.choices[0].message.model_dump(exclude_none=True))


async def record(served: Any, seeds: list[int], turns: int, pictures: bool) -> list[CallGraph]:
    """Episodes, all at the same time, through the endpoint and the recorder; their graphs."""
    recorder = Recorder(served.renderer, served, served.images)
    try:
        async with in_process_client(create_app(recorder, "admin-key-of-the-tests")) as http:
            clients = [
                openai.AsyncOpenAI(
                    base_url="http://recorder",
                    api_key=recorder.open_session(f"e{seed}"),
                    http_client=http,
                    max_retries=0,
                )
                for seed in seeds
            ]
            await asyncio.gather(
                *(play(client, seed, turns, pictures) for seed, client in zip(seeds, clients, strict=True))
            )
        assert not recorder.violations
        return [CallGraph.from_dict(recorder.close_session(f"e{seed}").to_dict()) for seed in seeds]
    finally:
        recorder.close()


def differences(served: Served, graphs: list[CallGraph], policy: Policy, images: Any = None) -> np.ndarray:
    """Trainer's log-prob - vLLM's, for every sampled token."""
    rows = [row for graph in graphs for row in graph.sequences()]
    found = policy.logprobs(rows, images or served.images)
    return np.concatenate(
        [
            new.astype(np.float64) - np.array(row.logprobs)[np.array(row.loss_mask)]
            for new, row in zip(found, rows, strict=True)
        ]
    )


def told(name: str, found: np.ndarray) -> float:
    """Print and return the largest difference."""
    largest = float(np.abs(found).max())
    print(f"{name}: max |difference| {largest:.2e} nat, mean {np.abs(found).mean():.2e}, {len(found)} tokens")
    return largest


@pytest.fixture(scope="module")
def policy(served: Served) -> Policy:
    torch.set_num_threads(1)
    return Policy(load("tiny").model, banned_ids=served.renderer.banned_ids)


async def test_recorded_episodes_are_what_vllm_served_and_what_is_trained(
    served: Served, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    protocol, sent_again = served.engine.protocol, list[str]()
    real = protocol.generate

    async def generate(*arguments: Any) -> Any:
        try:
            return await real(*arguments)
        except RetryRequest as error:
            sent_again.append(str(error))
            raise

    monkeypatch.setattr(protocol, "generate", generate)
    seen = await record(served, [1, 2, 3], 5, pictures=True)
    text = await record(served, [4, 5], 4, pictures=False)
    assert len(served.completions) == 3 * 5 + 2 * 4
    for prompt, _, done in served.completions:
        assert done.served_ids == prompt.token_ids
        assert done.versions == (0,) * len(done.token_ids)
        assert done.exact
    assert max(len(prompt.spans) for prompt, _, _ in served.completions) == 5
    assert not sent_again, "pictures that were sent once were found by their names"
    assert [len(graph.sequences()) for graph in (*seen, *text)] == [1] * 5, "each turn extends the one before"
    assert told("float32, images", differences(served, seen, policy)) < BAR
    assert told("float32, text", differences(served, text, policy)) < BAR
    names = sorted({span.sha256 for graph in seen for call in graph.calls for span in call.spans})
    turned = {name: served.images[other] for name, other in zip(names, names[1:] + names[:1], strict=True)}
    same = {name for name in names if turned[name].grid_thw == served.images[name].grid_thw}
    swapped = {name: turned[name] if name in same else served.images[name] for name in names}
    assert told("float32, images of other turns", differences(served, seen, policy, swapped)) > BAR


async def test_a_served_teacher_scores_recorded_tokens_like_one_in_this_process(served: Served, policy: Policy) -> None:
    """At temperature 1, over all ids but the placeholder, which the trained model never expects."""
    graphs = [*await record(served, [6], 3, pictures=True), *await record(served, [7], 2, pictures=False)]
    rows = [replace(row, temperature=1.0) for graph in graphs for row in graph.sequences()]
    assert served.engine._endpoint is not None
    scorer = PromptScorer(served.engine._endpoint, ImageEncoder(served.model.image_processor), "teacher", PATIENCE)
    await scorer.check(probe_texts(served.model.tokenizer), max(len(row.token_ids) for row in rows))
    with pytest.raises(ConfigError, match=r"teacher: the tokenizer of policy at .* is not that of the model"):
        await scorer.check([("Click", [1, 2, 3, 4])], 8)
    with pytest.raises(ConfigError, match="has a context of 2048 tokens, and sequences have up to 2048"):
        await scorer.check([], 2048)
    found = [await scorer.score(Prompt(row.token_ids, row.spans, served.images)) for row in rows]
    expected = Policy(policy.model).logprobs(rows, served.images)
    pairs = zip(found, rows, expected, strict=True)
    apart = np.concatenate([scores[np.array(row.loss_mask)] - own for scores, row, own in pairs])
    assert told("float32, a teacher", apart) < BAR


def prompt_of(served: Served, seed: int) -> Prompt:
    image = served.images.add(png(seed, 256, 192))
    return served.renderer.render((message("user", [ImagePart(image.sha256), "Click the blue box"]),), served.images)


def endless(served: Served, tokens: int, temperature: float = 1.0) -> Sampling:
    return Sampling(tokens, temperature, banned_ids=served.renderer.banned_ids, seed=1)


async def test_ids_that_are_expanded_already_are_noticed(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = prompt_of(served, 77)
    with monkeypatch.context() as patch:
        patch.setattr(
            "deskhand.engines.vllm.vllm_protocol.collapse_placeholders", lambda prompt: list(prompt.token_ids)
        )
        done = await served.generate(prompt, endless(served, 2))
    assert done.served_ids != prompt.token_ids
    assert (await served.generate(prompt, endless(served, 2))).served_ids == prompt.token_ids


CLICK_OR_DONE = {
    "type": "object",
    "properties": {"op": {"enum": ["click", "done"]}},
    "required": ["op"],
    "additionalProperties": False,
}
GRAMMARS = (Grammar("regex", r"[0-9]{3}-[a-c]{2}"), Grammar("json_schema", json.dumps(CLICK_OR_DONE)))


@pytest.mark.parametrize("grammar", GRAMMARS, ids=lambda grammar: grammar.kind)
async def test_a_grammar_is_obeyed_and_its_log_probs_are_not_trained_on(served: Served, grammar: Grammar) -> None:
    sampling = Sampling(
        60, 1.0, stop_ids=served.renderer.stop_ids, banned_ids=served.renderer.banned_ids, seed=3, grammar=grammar
    )
    done = await served.generate(prompt_of(served, 5), sampling)
    text = served.renderer.text_of(done.token_ids)
    if grammar.kind == "regex":
        assert re.fullmatch(grammar.text, text), text
    else:
        assert json.loads(text)["op"] in ("click", "done"), text
    assert done.finish_reason == "stop"


async def test_a_grammar_that_vllm_cannot_keep_to_is_refused(served: Served) -> None:
    sampling = Sampling(5, stop_ids=served.renderer.stop_ids, grammar=Grammar("regex", "(?=a)b"))
    with pytest.raises(UnsupportedGrammar, match="look-around"):
        await served.generate(prompt_of(served, 5), sampling)


async def test_a_stop_text_ends_the_reply_with_the_token_that_completes_it(served: Served) -> None:
    whole = await served.generate(prompt_of(served, 6), replace(endless(served, 24), top_logprobs=3))
    text = served.renderer.text_of(whole.token_ids).partition("<|")[0]  # what is written for a special token is no text
    stop = text[len(text) // 2 : len(text) // 2 + 2]
    ended = await served.generate(prompt_of(served, 6), replace(endless(served, 24), stop_texts=("never", stop)))
    assert ended.finish_reason == "stop"
    assert ended.token_ids == whole.token_ids[: len(ended.token_ids)]
    assert stop in served.renderer.text_of(ended.token_ids)
    assert stop not in served.renderer.text_of(ended.token_ids[:-1])
    for token, logprob, listed in zip(whole.token_ids, whole.logprobs, whole.top_logprobs, strict=True):
        assert len(listed) == 3
        assert sorted(listed, key=lambda one: -one[1]) == list(listed)
        assert dict(listed).get(token, logprob) == logprob


async def test_a_prompt_that_does_not_fit_is_refused_before_it_is_sent(served: Served) -> None:
    with pytest.raises(AgentError, match="exceeds the context length 2048"):
        await served.generate(Prompt((1,) * 2048), endless(served, 1))
    done = await served.generate(Prompt((1,) * 2045), endless(served, 100))
    assert len(done.token_ids) == 3


async def test_weights_published_in_mid_flight_change_outputs_and_versions(served: Served, policy: Policy) -> None:
    """Both halves of a request that met new weights have the log-probs of their own weights."""
    prompt = prompt_of(served, 9)
    before = await served.generate(prompt, endless(served, 8, temperature=0))
    torch.manual_seed(0)
    other = load("tiny").model
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1 + 0.05 * torch.randn_like(parameter))
    changed = Policy(other, banned_ids=served.renderer.banned_ids)
    count = 1200
    long = await served.in_flight(prompt, endless(served, count))
    await served.engine.update_weights(7, changed.snapshot())
    assert served.engine.version == 7
    done = await long
    switch = done.versions.index(7)
    print(f"tokens of version 0: {switch}, of version 7: {count - switch}")
    assert 0 < switch < count
    assert done.versions == (0,) * switch + (7,) * (count - switch)
    row = _row(prompt, done)
    for weights, part, name in ((policy, slice(0, switch), "before"), (changed, slice(switch, None), "after")):
        found = weights.logprobs([row], served.images)[0].astype(np.float64) - np.array(done.logprobs)
        assert told(f"float32, {name} the publication", found[part]) < BAR
    after = await served.generate(prompt, endless(served, 8, temperature=0))
    assert after.versions == (7,) * 8
    assert after.token_ids != before.token_ids or after.logprobs != pytest.approx(before.logprobs, abs=BAR)
    graphs = await record(served, [11], 3, pictures=True)
    assert told("float32, images, published weights", differences(served, graphs, changed)) < BAR


def _row(prompt: Prompt, done: Any) -> Any:
    graph = CallGraph()
    graph.add(Call("0", None, prompt.token_ids, prompt.spans, done, 1.0))
    return graph.sequences()[0]


async def test_a_paused_server_holds_its_requests(served: Served) -> None:
    await served.engine.pause()
    call = asyncio.create_task(served.generate(prompt_of(served, 9), endless(served, 4)))
    await asyncio.sleep(1.0)
    assert not call.done()
    await served.engine.resume()
    assert len((await call).token_ids) == 4


async def test_episodes_survive_the_servers_violent_death(served: Served) -> None:
    """Killed in the middle of an episode, it is started again with the weights that were published, and the episode
    goes on."""
    server = served.engine._server
    assert server is not None
    assert server.pid is not None
    family = [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]
    assert len(family) > 1, "the engine's worker is a process of its own"
    done = len(served.completions)
    async with asyncio.timeout(PATIENCE.outage_s):
        playing = asyncio.create_task(record(served, [21, 22], 4, pictures=True))
        while len(served.completions) < done + 3:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        os.kill(server.pid, signal.SIGKILL)
        graphs = await playing
    assert [len(graph.calls) for graph in graphs] == [4, 4]
    assert {version for graph in graphs for call in graph.calls for version in call.completion.versions} == {7}
    assert served.engine.stats.starts == 2
    assert not [process for process in family if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


async def test_bfloat16_is_reported(python: Path, tmp_path_factory: pytest.TempPathFactory, policy: Policy) -> None:
    made = serving(python, tmp_path_factory.mktemp("bfloat16"), "bfloat16")
    try:
        await made.engine.start()
        for pictures in (True, False):
            graphs = await record(made, [31, 32], 4, pictures)
            largest = told(f"bfloat16, {'images' if pictures else 'text'}", differences(made, graphs, policy))
            assert largest < 1.0, "rounding, not another prompt"
    finally:
        await made.engine.close()

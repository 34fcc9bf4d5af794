"""SGLang's protocol against a fake server with a real model: exact recording, new weights, errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fake_sglang import FakeSglang, listening
from patience import limit
from recording import png
from safetensors.torch import load_file, save_file
from training_fixture import checkpoint

from deskhand.config.load import load_config as settings
from deskhand.config.trainer import LoraConfig, PolicyConfig
from deskhand.engines import sglang_protocol
from deskhand.engines.http_engine.engine import HttpEngine, ServerTimeouts
from deskhand.errors import ConfigError, InfrastructureError, RecordError
from deskhand.models.load import LoadedModel, load
from deskhand.recipes.engine_factory import EngineRequest, build_engine
from deskhand.recorder.graph import Call, CallGraph
from deskhand.recorder.images import ImageCache
from deskhand.recorder.messages import ImagePart, message
from deskhand.recorder.recorder import ChatRequest, Recorder
from deskhand.recorder.renderer import ChatRenderer
from deskhand.trainer.policy import Policy
from deskhand.trainer.weight_sync import push_weights
from deskhand.types import Completion, Grammar, Prompt, Sampling

PATIENCE = ServerTimeouts(start_s=limit(5), outage_s=limit(5), request_s=limit(30), stall_s=limit(5), poll_s=0.1)


@dataclass
class Desk:
    fake: FakeSglang
    engine: HttpEngine
    model: LoadedModel
    images: ImageCache
    renderer: ChatRenderer

    def prompt(self, *seeds: int) -> Prompt:
        parts: list[Any] = ["Click the blue square"]
        for seed in seeds:
            parts += [ImagePart(self.images.add(png(seed, 90 + 20 * (seed % 3), 70)).sha256), "and"]
        return self.renderer.render((message("user", parts),), self.images)

    def sampling(self, tokens: int = 6, **settings: Any) -> Sampling:
        return Sampling(
            tokens, stop_ids=self.renderer.stop_ids, banned_ids=self.renderer.banned_ids, seed=1, **settings
        )


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    torch.set_num_threads(1)
    return str(checkpoint(tmp_path_factory.mktemp("checkpoint")))


@pytest.fixture
def fake(source: str) -> FakeSglang:
    model = load(source)
    return FakeSglang(model.model, model.image_processor)


@pytest.fixture
async def desk(source: str, fake: FakeSglang, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Desk]:
    for name in ("HTTP_PROXY", "ALL_PROXY", "http_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # where nobody listens: a call that went there would fail
    model = load(source)
    with listening(fake.app()) as url:
        engine = sglang_protocol.connect_sglang(
            url, model.image_processor, tmp_path / "weights", version=2, patience=PATIENCE
        )
        await engine.start()
        yield Desk(fake, engine, model, ImageCache(model.image_processor), ChatRenderer(model.tokenizer))
        await engine.close()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(limit(30)):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


def gap(model: Any, desk: Desk, prompt: Prompt, done: Completion) -> np.ndarray:
    """Differences between the trainer's log-probs and the server's."""
    graph = CallGraph([Call("0", None, prompt.token_ids, prompt.spans, done)])
    found = Policy(model, banned_ids=desk.renderer.banned_ids).logprobs(graph.sequences(), desk.images)[0]
    return np.abs(found - np.array(done.logprobs))


async def test_a_recorded_episode_is_what_was_served_and_what_is_trained(desk: Desk) -> None:
    recorder = Recorder(desk.renderer, desk.engine, desk.images)
    recorder.open_session("e")
    session = recorder.sessions.get("e")
    talk: list[Any] = []
    for turn in range(4):
        picture = ImagePart(desk.images.add(png(turn, 90 + 30 * (turn % 2), 70)).sha256)
        talk.append(message("user", [picture, f"Click the blue square {turn}"]))
        reply = await recorder.complete(session, ChatRequest(tuple(talk), Sampling(5, 0.7, seed=turn)))
        talk.append(message("assistant", reply.calls[0].text))
    assert not recorder.violations
    rows = recorder.close_session("e").sequences()
    recorder.close()
    assert [len(row.call_ids) for row in rows] == [4]
    assert {
        version for row in rows for version, sampled in zip(row.versions, row.loss_mask, strict=True) if sampled
    } == {2}
    policy = Policy(load(desk.model.source).model, banned_ids=desk.renderer.banned_ids)
    found = policy.logprobs(rows, desk.images)[0]
    assert np.abs(found - np.array(rows[0].logprobs)[list(rows[0].loss_mask)]).max() < 1e-3
    assert [len(body["image_data"]) for body in desk.fake.requests] == [1, 2, 3, 4]


async def test_ids_that_are_expanded_already_are_noticed(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sglang_protocol, "collapse_placeholders", lambda prompt: list(prompt.token_ids))
    with pytest.raises(InfrastructureError, match=r"answered 400: \d+ placeholders, 1 images"):
        await desk.engine.generate(desk.prompt(1), desk.sampling())


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("prompt_token_ids", lambda reply: reply["prompt_token_ids"].pop()),
        ("output_ids", lambda reply: reply["output_ids"].reverse() or reply["output_ids"].append(1)),
    ],
)
async def test_a_reply_that_contradicts_itself_is_noticed(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, name: str, wrong: Any
) -> None:
    real = desk.fake._generate

    async def tampered(body: dict[str, Any]) -> dict[str, Any]:
        reply = await real(body)
        wrong(reply)
        return reply

    monkeypatch.setattr(desk.fake, "_generate", tampered)
    recorder = Recorder(desk.renderer, desk.engine, desk.images)
    recorder.open_session("e")
    session = recorder.sessions.get("e")
    asked = ChatRequest((message("user", [ImagePart(desk.images.add(png(1)).sha256)]),), Sampling(6, seed=1))
    with pytest.raises(RecordError):
        await recorder.complete(session, asked)
    recorder.close()


async def test_new_weights_reach_a_request_in_flight_and_every_later_one(desk: Desk) -> None:
    prompt = desk.prompt(1, 2)
    before = await desk.engine.generate(prompt, desk.sampling(temperature=0))
    assert before.versions == (2,) * len(before.token_ids)
    torch.manual_seed(5)
    other = load(desk.model.source).model
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    desk.fake.token_s = 0.01
    endless = Sampling(60, banned_ids=desk.renderer.banned_ids, seed=1)
    so_far = desk.fake.sampled
    call = asyncio.create_task(desk.engine.generate(prompt, endless))
    await until(lambda: desk.fake.sampled > so_far + 3)
    await desk.engine.update_weights(3, Policy(other).snapshot())
    done = await call
    switch = done.versions.index(3)
    assert done.versions == (2,) * switch + (3,) * (60 - switch)
    old = load(desk.model.source).model
    assert gap(old, desk, prompt, done)[:switch].max() < 1e-3
    assert gap(other, desk, prompt, done)[switch:].max() < 1e-3
    after = await desk.engine.generate(prompt, desk.sampling(temperature=0))
    assert after.versions == (3,) * len(after.token_ids)
    assert after.logprobs != pytest.approx(before.logprobs, abs=1e-3)


@pytest.fixture
def adapted(fake: FakeSglang, source: str) -> Policy:
    """A policy that trains an adapter, in front of a server that takes adapters."""
    fake.supports_lora = True
    return Policy(load(source).model, PolicyConfig(lora=LoraConfig(rank=4, alpha=8)), banned_ids=(1,))


def move(policy: Policy, seed: int) -> None:
    """Other adapters."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.parameters().values():
            parameter.normal_(0, 0.2)


async def test_adapters_are_loaded_over_base_weights_and_requests_in_flight_keep_theirs(
    adapted: Policy, desk: Desk
) -> None:
    below = {name: tensor.clone() for name, tensor in desk.fake.model.state_dict().items()}
    prompt, endless = desk.prompt(1, 2), Sampling(12, banned_ids=desk.renderer.banned_ids, seed=1)
    desk.fake.released = set()
    calls: list[tuple[int, Policy, asyncio.Task[Completion]]] = []
    for version in range(3, 8):
        if len(calls) > 1:  # the third adapter is unloaded, so its requests have to finish
            desk.fake.released.add(desk.fake.requests[-2]["lora_path"])
        move(adapted, version)
        await push_weights(adapted, desk.engine, version)
        assert desk.engine.version == version
        assert not calls or not calls[-1][2].done(), "the request of the version before is in flight"
        so_far = desk.fake.sampled
        calls.append((version, adapted.copy(frozen=True), asyncio.create_task(desk.engine.generate(prompt, endless))))
        await until(lambda so_far=so_far: desk.fake.sampled >= so_far + 3)
    desk.fake.released = None
    first = set()
    for version, policy, call in calls:
        done = await call
        assert done.versions == (version,) * 12
        assert gap(policy.model, desk, prompt, done).max() < 1e-3
        first.add(done.logprobs[0])
    assert len(first) == 5, "each adapter gives other log-probs"
    assert len(desk.fake.adapters) == 2
    assert all(torch.equal(tensor, below[name]) for name, tensor in desk.fake.model.state_dict().items())


async def test_a_restarted_server_gets_its_adapter_again(adapted: Policy, desk: Desk) -> None:
    move(adapted, 1)
    await push_weights(adapted, desk.engine, 3)
    desk.fake.adapters.clear()
    desk.fake.version = "default"
    prompt = desk.prompt(1)
    done = await desk.engine.generate(prompt, desk.sampling())
    assert done.versions == (3,) * len(done.token_ids)
    assert gap(adapted.model, desk, prompt, done).max() < 1e-3
    assert len(desk.fake.adapters) == 1
    desk.fake.version = "9"  # somebody else's weights below our adapter
    with pytest.raises(InfrastructureError, match=r"has other weights \(9, not 2\); restart it to use adapters"):
        await desk.engine.generate(prompt, desk.sampling())


async def test_a_server_without_adapter_support_gets_merged_weights(
    adapted: Policy, desk: Desk, fake: FakeSglang
) -> None:
    desk.engine.protocol.supports_lora = fake.supports_lora = False
    move(adapted, 1)
    await push_weights(adapted, desk.engine, 3)
    prompt = desk.prompt(1)
    done = await desk.engine.generate(prompt, desk.sampling())
    assert done.versions == (3,) * len(done.token_ids)
    assert gap(adapted.model, desk, prompt, done).max() < 1e-3
    assert "lora_path" not in desk.fake.requests[-1]


async def test_rejected_weights_are_an_outage(desk: Desk) -> None:
    desk.fake.fail_loading = True
    with pytest.raises(InfrastructureError, match="no room"):
        await desk.engine.update_weights(3, desk.model.model.state_dict())


async def test_an_aborted_request_is_repeated(desk: Desk) -> None:
    desk.fake.token_s = 0.05
    so_far = desk.fake.sampled
    call = asyncio.create_task(desk.engine.generate(desk.prompt(1), Sampling(20, banned_ids=desk.renderer.banned_ids)))
    await until(lambda: desk.fake.sampled > so_far + 3)
    desk.fake.aborted += 1
    assert len((await call).token_ids) == 20
    assert desk.engine.stats.tries == 2


async def test_top_logprobs_and_grammars_use_the_servers_parameters(desk: Desk) -> None:
    done = await desk.engine.generate(desk.prompt(), desk.sampling(top_logprobs=3))
    assert [len(listed) for listed in done.top_logprobs] == [3] * len(done.token_ids)
    for token, value, listed in zip(done.token_ids, done.logprobs, done.top_logprobs, strict=True):
        assert dict(listed).get(token, value) == value
    await desk.engine.generate(desk.prompt(), desk.sampling(grammar=Grammar("regex", "a+")))
    assert desk.fake.requests[-1]["sampling_params"]["regex"] == "a+"


async def test_addresses_are_checked_before_anything_is_sent(tmp_path: Path, desk: Desk) -> None:
    for url, reason in (
        ("localhost:30000", "expected a URL such as http://host:port"),
        ("http://me:secret@host", "credentials"),
    ):
        with pytest.raises(ConfigError, match=reason) as caught:
            sglang_protocol.connect_sglang(url, desk.model.image_processor, tmp_path)
        assert "secret" not in str(caught.value)
    nobody = sglang_protocol.connect_sglang(
        "http://127.0.0.1:9", desk.model.image_processor, tmp_path, patience=ServerTimeouts(start_s=0.3, poll_s=0.1)
    )
    with pytest.raises(
        InfrastructureError, match=r"SGLang did not start in 0\.3 s: http://127\.0\.0\.1:9/health cannot be reached"
    ):
        await nobody.start()


async def test_a_running_server_gets_the_requested_checkpoint_instead_of_an_earlier_runs_weights(
    source: str, fake: FakeSglang, tmp_path: Path
) -> None:
    """Evaluate another checkpoint, then the server's first model, each under its own name."""
    other = str(checkpoint(tmp_path / "other", seed=1))
    file = Path(other, "model.safetensors")
    louder = {name: value * (6.0 if value.ndim > 1 else 1.0) for name, value in load_file(file).items()}
    save_file(louder, file, {"format": "pt"})  # random weights as they are make every reply alike
    model = load(source)
    images, renderer = ImageCache(model.image_processor), ChatRenderer(model.tokenizer)
    prompt = renderer.render((message("user", [ImagePart(images.add(png(1, 90, 70)).sha256), "Click"]),), images)
    found = []
    with listening(fake.app()) as url:
        config = settings(None, ["engine.backend=sglang", f"engine.base_url={url}"]).engine
        for asked, version in ((source, 0), (other, 7), (source, 0), (source, 0)):
            request = EngineRequest(
                config=config, checkpoint=asked, version=version, device="cpu", dtype="float32",
                run_dir=tmp_path / "weights", read_png=lambda sha256: b"", served_checkpoint=source,
            )  # fmt: skip
            made = await build_engine(request)
            done = await made.engine.generate(prompt, Sampling(6, banned_ids=renderer.banned_ids, seed=1))
            await made.engine.close()
            assert done.versions == (version,) * 6
            graph = CallGraph([Call("0", None, prompt.token_ids, prompt.spans, done)])
            scored = Policy(load(asked).model, banned_ids=renderer.banned_ids).logprobs(graph.sequences(), images)[0]
            assert np.abs(scored - np.array(done.logprobs)).max() < 1e-3
            found.append((done.token_ids, fake.loaded))
    assert found[0][0] == found[2][0] != found[1][0]
    assert [loaded for _, loaded in found] == [0, 1, 2, 2], "what the server has need not be read again"
    assert load_file(file).keys() == louder.keys(), "the checkpoint that was asked for stays"

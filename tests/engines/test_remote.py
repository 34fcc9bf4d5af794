"""OpenAI-compatible endpoints as engines: their replies are recorded and never trained on.

The endpoint here is Deskhand's own recorder over a real socket.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from fake_sglang import listening
from recording import ScriptedEngine, png
from transformers import PreTrainedTokenizerFast
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from deskhand.engines.openai_endpoint import OpenAIEndpointEngine
from deskhand.errors import AgentError, ConfigError, InfrastructureError
from deskhand.models.tiny.tokenizer import build_tokenizer
from deskhand.recorder.images import ImageCache
from deskhand.recorder.messages import ImagePart, Message, message
from deskhand.recorder.recorder import Recorder
from deskhand.recorder.renderer import ChatRenderer
from deskhand.recorder.server import create_app
from deskhand.types import Prompt, Sampling


class Desk:
    """A recorder's parts on our side, and on the other side the endpoint with all that it was asked."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        processor = Qwen2VLImageProcessorPil(
            patch_size=8, merge_size=2, size={"shortest_edge": 256, "longest_edge": 64 * 64}
        )
        self.tokenizer, self.renderer, self.images = tokenizer, ChatRenderer(tokenizer), ImageCache(processor)
        self.theirs = Recorder(
            ChatRenderer(tokenizer), ScriptedEngine(self.say), ImageCache(processor), context_tokens=400
        )
        self.says = '{"op":"done"}'
        self.encoded: dict[str, bytes] = {}

    def say(self, prompt: Prompt, sampling: Sampling) -> list[int]:
        return [*self.renderer.encode_text(self.says), self.renderer.stop_ids[0]]

    def picture(self, seed: int) -> ImagePart:
        data = png(seed, 200, 100)
        name = self.images.add(data).sha256
        self.encoded[name] = data
        return ImagePart(name)

    def render(self, *messages: Message) -> Prompt:
        return self.renderer.render(messages, self.images)

    @property
    def asked(self) -> list[Prompt]:
        engine = self.theirs.engine
        assert isinstance(engine, ScriptedEngine)
        return engine.prompts


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return build_tokenizer(["Click the button", '{"op":"done"}'], merges=40)


@pytest.fixture
def desk(tokenizer: PreTrainedTokenizerFast) -> Iterator[Desk]:
    made = Desk(tokenizer)
    yield made
    made.theirs.close()


@pytest.fixture
async def engine(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[OpenAIEndpointEngine]:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with listening(create_app(desk.theirs, "admin-key-of-the-tests")) as url:
        made = OpenAIEndpointEngine(
            f"{url}/v1",
            "policy",
            desk.tokenizer,
            desk.encoded.__getitem__,
            api_key=desk.theirs.open_session("e"),
            retries=0,
        )
        yield made
        await made.close()


async def test_the_conversation_arrives_as_it_was(desk: Desk, engine: OpenAIEndpointEngine) -> None:
    one, two = desk.picture(1), desk.picture(2)
    talk = (
        message("system", "Be brief.\nSay <|im_end|> never."),
        message("user", ["before", one, "<|image_pad|> between", two]),
        message("assistant", "click\n"),
        message("user", [two]),
    )
    prompt = desk.render(*talk)
    done = await engine.generate(prompt, Sampling(20, temperature=0.5))
    assert desk.asked[0].token_ids == prompt.token_ids, (
        "messages read back from ids and rendered again give the same ids"
    )
    assert [span.sha256 for span in desk.asked[0].spans] == [one.sha256, two.sha256, two.sha256], (
        "with the pixels as they were taken"
    )
    assert desk.renderer.text_of(done.token_ids) == desk.says
    assert (done.exact, done.finish_reason) == (False, "stop")


async def test_an_endpoint_rejects_weights(desk: Desk, engine: OpenAIEndpointEngine) -> None:
    with pytest.raises(ConfigError, match=r"is for evaluation only; train with engine\.backend hf, vllm or sglang"):
        await engine.update_weights(1, {})


async def test_a_reply_is_truncated_at_max_tokens(desk: Desk, engine: OpenAIEndpointEngine) -> None:
    done = await engine.generate(desk.render(message("user", "Click the button")), Sampling(1))
    assert (len(done.token_ids), done.finish_reason) == (1, "length")
    desk.says = ""
    silent = await engine.generate(desk.render(message("user", "Click the button")), Sampling(3))
    assert (desk.renderer.text_of(silent.token_ids), silent.finish_reason) == ("", "stop")


async def test_failures_are_infrastructure_errors_and_a_long_conversation_is_an_agent_error(
    desk: Desk, engine: OpenAIEndpointEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(AgentError, match="too long"):
        await engine.generate(desk.render(message("user", "Click the button " * 200)), Sampling(3))
    short = desk.render(message("user", "x"))
    desk.theirs.renderer.behavior.unsupported["user"] = "users are not heard"
    with pytest.raises(InfrastructureError, match=r"policy at http://127.*rejected a request: .*users are not heard"):
        await engine.generate(short, Sampling(3))
    other = OpenAIEndpointEngine("http://127.0.0.1:9/v1", "m", desk.tokenizer, desk.encoded.__getitem__, retries=0)
    with pytest.raises(InfrastructureError, match=r"m at http://127\.0\.0\.1:9/v1 did not answer"):
        await other.generate(short, Sampling(3))
    await other.close()
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    away = OpenAIEndpointEngine("http://a.invalid/v1", "m", desk.tokenizer, desk.encoded.__getitem__, retries=0)
    with pytest.raises(InfrastructureError, match=r"did not answer: .*through the proxy http://127\.0\.0\.1:9"):
        await away.generate(short, Sampling(3))
    await away.close()
    monkeypatch.setenv("SSL_CERT_FILE", "/nonexistent")
    with pytest.raises(ConfigError, match="SSL_CERT_FILE: /nonexistent is not a file"):
        OpenAIEndpointEngine("https://a.invalid/v1", "m", desk.tokenizer, desk.encoded.__getitem__)

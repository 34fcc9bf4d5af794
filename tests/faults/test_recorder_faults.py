"""Known faults of recording proxies and trainers, injected by patching one production function each.

A check that runs in production must detect each fault; without it the same episode passes.
"""

from __future__ import annotations

import asyncio
import base64
import io
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import chat_templates
import numpy as np
import pytest
import torch
from PIL import Image
from random_models import Conversation, save_checkpoint, wrap
from recording import ScriptedEngine, png
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from deskhand.engines.hf import HfEngine, decode_request
from deskhand.errors import ConfigError, DeskhandError, InfrastructureError, RecordError
from deskhand.models import forward, load
from deskhand.models.tiny.tokenizer import build_tokenizer
from deskhand.recorder import graph as graph_module
from deskhand.recorder import renderer as renderer_module
from deskhand.recorder.graph import CallGraph
from deskhand.recorder.images import ImageCache
from deskhand.recorder.messages import ImagePart, Message, message
from deskhand.recorder.recorder import ChatRequest, Recorder
from deskhand.recorder.renderer import ChatRenderer
from deskhand.recorder.session_store import SessionStore
from deskhand.trainer.batch import check_sequence
from deskhand.types import Checksum, Sampling

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = build_tokenizer(["Click the button named Save.", "tool_response"], merges=40)
    tokenizer.chat_template = chat_templates.QWEN3_VL
    return tokenizer


@pytest.fixture(scope="module")
def processor() -> Any:
    return Qwen2VLImageProcessorPil(
        patch_size=4, merge_size=2, temporal_patch_size=2, size={"shortest_edge": 64, "longest_edge": 64 * 64}
    )


class Play:
    """An episode with images in user and tool turns, ambiguous tokenizations, a retry and a replaced question."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, processor: Any, folder: Path) -> None:
        self.folder = SessionStore(folder, durable=False)
        self.processor = processor
        self.renderer = ChatRenderer(tokenizer)
        self.images = ImageCache(processor, on_new=self.folder.save_image)
        split = [*self.renderer.encode_text("5"), *self.renderer.encode_text("12"), *self.renderer.encode_text("C")]
        self.engine = ScriptedEngine(lambda prompt, sampling: [*split, self.renderer.stop_ids[0]])
        self.recorder = Recorder(self.renderer, self.engine, self.images, on_call=self.folder.write_call)

    async def run(self) -> CallGraph:
        session = self.recorder.sessions.find(self.recorder.open_session("s"))
        assert session is not None
        talk: list[Message] = [message("user", [self.shown(0), "go"])]

        async def ask() -> None:
            reply = await self.recorder.complete(session, ChatRequest(tuple(talk), Sampling(8)))
            talk.append(message("assistant", reply.calls[0].text))

        await ask()
        talk.append(message("tool", ["seen", self.shown(1)]))
        await ask()
        talk.pop()
        await ask()
        talk += [message("user", [self.shown(2), "on"])]
        await ask()
        talk[-2] = message("user", "another question")
        talk.pop()
        await ask()
        return self.recorder.close_session("s")

    def shown(self, seed: int) -> ImagePart:
        return ImagePart(self.images.add(png(seed)).sha256)

    def whole(self) -> CallGraph:
        """Record, merge, check each row as the trainer does, and read everything back."""
        graph = asyncio.run(self.run())
        kept = ImageCache(self.processor, fetch=self.folder.image)
        for row in graph.sequences():
            check_sequence(row, kept, self.renderer.image_id, self.renderer.banned_ids)
        assert self.folder.read("s")[0].calls == graph.calls
        return graph


@pytest.fixture
def play(tokenizer: PreTrainedTokenizerFast, processor: Any, tmp_path: Path) -> Callable[[], CallGraph]:
    return lambda: Play(tokenizer, processor, tmp_path).whole()


def expand_twice(line: Any, sha256: str) -> None:
    pictures[0](line, sha256)
    line.token_ids.extend([line.renderer.image_id] * (line.images[sha256].tokens - 1 if line.images is not None else 0))


pictures = [renderer_module._PromptBuilder.image]
put_parts, put_reply, render = ChatRenderer._put_parts, ChatRenderer._put_reply, ChatRenderer.render
node_to_dict, save_image = CallGraph._node_to_dict, SessionStore.save_image


def drop_tool_pictures(renderer: ChatRenderer, line: Any, parts: Any) -> None:
    put_parts(
        renderer, line, [part for part in parts if isinstance(part, str)] if parts and parts[0] == "seen" else parts
    )


def cut_the_front(renderer: ChatRenderer, messages: Any, images: Any, recall: Any = None) -> Any:
    prompt = render(renderer, messages, images, recall)
    at = prompt.spans[0].start + 1
    return replace(
        prompt, token_ids=prompt.token_ids[at:], spans=tuple(replace(s, start=s.start - at) for s in prompt.spans)
    )


def retokenise(renderer: ChatRenderer, line: Any, token_ids: tuple[int, ...]) -> None:
    line.text(renderer.text_of(token_ids))
    line.special(renderer.end_id)
    line.text("\n")


def close_always(renderer: ChatRenderer, line: Any, token_ids: tuple[int, ...]) -> None:
    line.recorded(token_ids)
    line.special(renderer.end_id)
    line.text("\n")


def pixels_on_the_wire(graph: CallGraph, node: Any) -> dict[str, Any]:
    pixels = np.zeros((4784, 1176), np.float32).tobytes()
    return {**node_to_dict(graph, node), "pixels": base64.b64encode(pixels).decode()}


def store_jpeg(folder: SessionStore, sha256: str, encoded: bytes) -> None:
    buffer = io.BytesIO()
    Image.open(io.BytesIO(encoded)).convert("RGB").save(buffer, "JPEG")
    save_image(folder, sha256, buffer.getvalue())


def any_parent(graph: CallGraph, prompt_ids: Any, spans: Any, temperature: float) -> str | None:
    fitting = [call for call in graph.calls if call.is_extended_by(prompt_ids, spans)]
    return fitting[0].id if fitting else None


def last_parent(graph: CallGraph, prompt_ids: Any, spans: Any, temperature: float) -> str | None:
    return graph.calls[-1].id if graph.calls else None


row_of = graph_module._sequence


def all_sampled(line: Any, trained: Any) -> Any:
    row = row_of(line, trained)
    return replace(row, loss_mask=(True,) * len(row.loss_mask))


FAULTS: dict[str, tuple[Any, str, Any, str]] = {
    "2: placeholders are expanded twice": (renderer_module._PromptBuilder, "image", expand_twice, "placeholders"),
    "4: pictures in tool messages are dropped": (ChatRenderer, "_put_parts", drop_tool_pictures, "images_dropped"),
    "6: truncation cuts through a picture": (ChatRenderer, "render", cut_the_front, "placeholders"),
    "7: history is turned into text and tokenized again": (ChatRenderer, "_put_reply", retokenise, "retokenized"),
    "8: a reply that has its stop id is closed once more": (ChatRenderer, "_put_reply", close_always, "turn_ends"),
    "11: pixels travel with every call": (CallGraph, "_node_to_dict", pixels_on_the_wire, "wire"),
    "12: screenshots are stored in another encoding": (SessionStore, "save_image", store_jpeg, "image_changed"),
    "13: a retry is taken for a continuation": (CallGraph, "parent_of", any_parent, "fork"),
    "13: any call is taken for a continuation": (CallGraph, "parent_of", last_parent, "not_a_prefix"),
    "15: the mask of sampled tokens does nothing": (graph_module, "_sequence", all_sampled, "no_prompt"),
}


def test_without_a_fault_the_episode_goes_through(play: Callable[[], CallGraph]) -> None:
    graph = play()
    assert len(graph.calls) == 5
    assert graph.untrained == {"s.2": "superseded"}
    assert sum(call.parent is not None for call in graph.calls) >= 2


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_detected(name: str, play: Callable[[], CallGraph], monkeypatch: pytest.MonkeyPatch) -> None:
    owner, attribute, wrong, cause = FAULTS[name]
    monkeypatch.setattr(owner, attribute, wrong)
    with pytest.raises(DeskhandError, match=rf"\b{cause}\b"):
        play()


def test_3_a_placeholder_of_another_name_is_rejected_at_the_start(
    tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the tokenizer maps unknown names to its unknown token."""
    other = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(tokenizer.backend_tokenizer.to_str().replace("<|image_pad|>", "<|image|>")),
        chat_template=chat_templates.QWEN3_VL.replace("<|image_pad|>", "<|image|>"),
    )
    with pytest.raises(ConfigError, match=re.escape("no special token <|image_pad|>")):
        ChatRenderer(other)
    known = ChatRenderer._id
    monkeypatch.setattr(
        ChatRenderer, "_id", lambda renderer, name: known(renderer, name) if name in renderer._special else 0
    )
    with pytest.raises(ConfigError, match="unsupported rendering of an image before text"):
        ChatRenderer(other)


JOINS: dict[str, Callable[[list[torch.Tensor]], list[torch.Tensor]]] = {
    "1: pixels never arrive": lambda parts: [torch.zeros_like(part) for part in parts],
    "5: each image has the patches of another": lambda parts: parts[1:] + parts[:1],
    "5: the split is off by a patch": lambda parts: [torch.cat(parts).roll(1, 0)],
}


@pytest.mark.parametrize("name", JOINS)
def test_pixels_of_other_images_are_detected(name: str, processor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def join(images: Any) -> torch.Tensor:
        return torch.cat(JOINS[name]([torch.from_numpy(one.pixel_values.stored()) for one in images]))

    images = ImageCache(processor)
    shown = [images.add(png(seed)) for seed in range(3)]
    forward.stack_images(shown, "cpu")
    monkeypatch.setattr(forward, "join_pixels", join)
    with pytest.raises(RecordError, match="pixels"):
        forward.stack_images(shown, "cpu")


async def test_1_an_engine_that_loses_pixels_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    talk = Conversation(3)
    prompt = talk.observe()
    images = {name: replace(one, checksum=Checksum()) for name, one in (prompt.images or {}).items()}
    for one in images.values():
        one.checksum.record(one.pixel_values)
    monkeypatch.setattr(
        forward, "join_pixels", lambda found: torch.zeros(sum(len(one.pixel_values) for one in found), 96)
    )
    engine = HfEngine(wrap("qwen3_vl"))
    try:
        with pytest.raises(InfrastructureError, match="pixels"):
            await engine.generate(replace(prompt, images=images), Sampling(2))
    finally:
        await engine.close()


@pytest.mark.parametrize("family", ["qwen3_vl", "qwen2_5_vl"])
def test_10_wrong_positions_are_rejected_at_the_start(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_checkpoint(tmp_path, family)
    load.load(str(tmp_path))
    flat = lambda length, spans, images, merge: (np.broadcast_to(np.arange(length), (3, length)), length)  # noqa: E731
    monkeypatch.setattr(forward, "positions", flat)
    with pytest.raises(ConfigError, match="positions"):
        load.load(str(tmp_path))


async def test_15_a_truncated_reply_does_not_count_as_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's end of a reply does nothing: whatever it sampled, it says that the model had ended it."""
    model = load.load("tiny")
    renderer, engine = ChatRenderer(model.tokenizer), HfEngine(model)
    recorder = Recorder(renderer, engine, ImageCache(model.image_processor))
    asked = ChatRequest((message("user", "go"),), Sampling(1, 1.0, seed=1))
    try:
        session = recorder.session(recorder.open_session("sound"))
        assert session is not None
        (call,) = (await recorder.complete(session, asked)).calls
        assert call.completion.finish_reason == "length"
        ended = decode_request.DecodeRequest.finish_reason.fget
        assert ended is not None
        monkeypatch.setattr(
            decode_request.DecodeRequest, "finish_reason", property(lambda one: "stop" if ended(one) else None)
        )
        session = recorder.session(recorder.open_session("s"))
        assert session is not None
        with pytest.raises(RecordError, match="finish_reason"):
            await recorder.complete(session, asked)
    finally:
        await engine.close()
        recorder.close()


async def test_15_an_aborted_reply_is_an_outage_and_never_a_sample(
    tokenizer: PreTrainedTokenizerFast, processor: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = Play(tokenizer, processor, tmp_path)
    done = ScriptedEngine.generate

    async def abort(engine: ScriptedEngine, prompt: Any, sampling: Any) -> Any:
        return replace(await done(engine, prompt, sampling), finish_reason="aborted")

    monkeypatch.setattr(ScriptedEngine, "generate", abort)
    with pytest.raises(InfrastructureError, match="aborted"):
        await played.run()
    assert played.recorder.close_session("s").calls == []

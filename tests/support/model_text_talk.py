"""What models read of agents, tasks, the recorder's prompts and judges, and the files of the bundled model."""

from __future__ import annotations

import copy
import functools
import hashlib
import itertools
import json
from collections.abc import Iterator
from typing import Any
from unittest import mock

import chat_templates
import fake_desktop
import httpx2
import numpy as np
import openai
from recording import ScriptedEngine, data_uri

from deskhand.actions import formats
from deskhand.actions.formats.base import ScreenView
from deskhand.agents import desktop_agent, text_observation
from deskhand.agents.desktop_agent import MAX_DROPPED_TURNS, DesktopAgent, noise_frame
from deskhand.agents.history import summarize_dropped
from deskhand.agents.prompts import Turn, build_messages
from deskhand.agents.seeding import call_seed
from deskhand.config.schema import AgentConfig
from deskhand.desktop.base import DesktopSpec, Frame
from deskhand.engines.openai_endpoint import OpenAIEndpointEngine
from deskhand.models.load import TINY_FOLDER, load_processors
from deskhand.recorder.images import ImageCache
from deskhand.recorder.messages import ToolCall
from deskhand.recorder.recorder import Recorder
from deskhand.recorder.renderer import ChatRenderer
from deskhand.recorder.server import create_app, in_process_client
from deskhand.tasks.checks.vlm_judge import VlmJudgeCheck, VlmJudgeClient
from deskhand.tasks.suites import basics, miniwob, web
from deskhand.tasks.task import Family, seed_for
from deskhand.types import Prompt, Sampling

SEEDS = range(10)
KEY = "a-key-of-the-tests"
REPLIES = (
    ('{"op":"click","x":250,"y":800}', "stop"),
    ("I wonder.", "stop"),
    ('{"op":"zoom","x1":0,"y1":0,"x2":500,"y2":500}', "stop"),
    ('{"op":"click","x":5000,"y":8}', "stop"),
    ('{"op":"click","x":', "length"),
    ('{"op":"wait","seconds":0.01}', "stop"),
    ('{"op":"done"}', "stop"),
)
"""What a model says on the painted desktop: it is understood, not understood, off the screen, and cut."""
TURNS = (
    Turn("data:1", "nonsense"),
    Turn("data:2", '{"op":"click","x":1,"y":2}', "no action found"),
    Turn("data:3", '{"op":"done"}', None, ("data:4", "data:5")),
    Turn("data:6", None, "x=5000 is off the screen"),
)
"""Turns of an agent that was told of mistakes and looked closer."""


def as_text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1)


def reply_body(text: str, finish_reason: str = "stop") -> bytes:
    choices = [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish_reason}]
    return json.dumps({"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": choices}).encode()


class Endpoint:
    """A chat endpoint that says `replies` in turn and keeps the messages that it was sent, images without bytes."""

    def __init__(self, *replies: tuple[str, str]) -> None:
        self.replies, self.sent = list(replies), []
        transport = httpx2.MockTransport(self.answer)
        http = httpx2.AsyncClient(transport=transport)
        self.client = openai.AsyncOpenAI(base_url="http://model/v1", api_key="k", http_client=http, max_retries=0)

    def answer(self, request: httpx2.Request) -> httpx2.Response:
        body = json.loads(request.content)
        for message in body["messages"]:
            for part in message["content"] if isinstance(message["content"], list) else ():
                if part["type"] == "image_url":
                    part["image_url"]["url"] = part["image_url"]["url"].partition(",")[0]
        self.sent.append({"messages": body["messages"], "seed": body.get("seed")})
        content = reply_body(*self.replies.pop(0))
        return httpx2.Response(200, content=content, headers={"content-type": "application/json"})


class Window:
    """A window as a desktop lists it."""

    title, x, y, width, height = "Notes é", 3, 4, 200, 100


class Described(fake_desktop.PaintedDesktop):
    """A painted desktop that says what is on its screen: the windows, or an accessibility tree."""

    def __init__(self, tree: str | None = None, windows: int = 0) -> None:
        super().__init__()
        self.tree, self.count = tree, windows

    async def accessibility_tree(self) -> str | None:
        return self.tree

    async def windows(self) -> list[Window]:
        return [Window()] * self.count


async def screen(desktop: fake_desktop.PaintedDesktop) -> Frame:
    await desktop.reset(DesktopSpec("plain", fake_desktop.WIDTH, fake_desktop.HEIGHT))
    await fake_desktop.square_task(1).setup(desktop)
    return await desktop.observe()


async def agent_texts() -> dict[str, str]:
    """What agents send, by key."""
    found: dict[str, str] = {}
    for style, zoomed in itertools.product(("compact", "full"), (False, True)):
        earlier = ["(3 earlier)", "4. a", "5. b (not performed: c)"] if zoomed else []
        turns = TURNS if zoomed else TURNS[:2]
        sent = build_messages(style, "Do it é", turns, prompt="The prompt", earlier=earlier)
        found[f"agent/messages/{style}, {len(turns)} turns"] = as_text(sent)
        described = [Turn("data:1", "a", screen_text="a button"), Turn("data:2", None, "why", ("data:3",), "a window")]
        found[f"agent/messages/{style}, in words"] = as_text(build_messages(style, "Do it", described, prompt="p"))
    for kind in ("nothing", "replies", "steps"):
        said = summarize_dropped(kind, ["a", "b", "c", "d"], [None, "why", None, "not so"], 3)
        found[f"agent/dropped turns/{kind}"] = "\n".join(said)
    for name, desktop in {
        "tree": Described("button 'OK'"),
        "long tree": Described("x" * 10_000),
        "windows": Described(windows=2),
        "nothing": Described(),
    }.items():
        found[f"agent/screen in words/{name}"] = await text_observation.describe_screen(desktop)
    pixels = noise_frame(await screen(fake_desktop.PaintedDesktop()), "Click the blue square-0").bgrx
    found["agent/noise"] = hashlib.sha256(pixels.tobytes()).hexdigest()
    for parts in ((0, 0), (1, "a"), (7, "family", 3, 2)):
        found[f"agent/seed/{len(parts)}"] = str(call_seed(*parts))
    full = {"prompt_style": "full"}
    for name, (settings, max_dropped, history) in {
        "compact": ({}, MAX_DROPPED_TURNS, None),
        "compact, all told": ({"dropped_turns": "steps"}, 2, Last()),
        "full": (full, MAX_DROPPED_TURNS, None),
        "full, last turn": (full, MAX_DROPPED_TURNS, Last()),
        "full, all told": (full | {"dropped_turns": "steps"}, 3, Last()),
        "full, nothing told": (full | {"dropped_turns": "nothing", "error_feedback": False}, MAX_DROPPED_TURNS, Last()),
        "in words": (full | {"observation": "a11y_tree"}, MAX_DROPPED_TURNS, None),
        "qwen3_vl": (full | {"action_format": "qwen3_vl"}, MAX_DROPPED_TURNS, None),
    }.items():
        endpoint, desktop = Endpoint(*REPLIES), Described("a blue square")
        await screen(desktop)
        agent = DesktopAgent(AgentConfig(**settings, max_new_tokens=64, max_consecutive_errors=9))
        if history is not None:
            agent._history = history
        with mock.patch.object(desktop_agent, "MAX_DROPPED_TURNS", max_dropped):
            await agent.solve(desktop, "Click the blue square", endpoint.client, max_steps=len(REPLIES), seed=5)
        found[f"agent/episode/{name}"] = as_text(endpoint.sent)
    return found


class Last:
    """Of the turns, the last is shown."""

    def start_index(self, turns: int) -> int:
        return turns - 1


def family_texts() -> Iterator[tuple[str, str]]:
    """(key, text) of every task family: what its variants ask for and how they are shown."""
    yield "suite/basics/families", "\n".join(basics.FAMILIES)
    for name, family in basics.FAMILIES.items():
        for seed in SEEDS:
            yield f"family/{name}/instruction/seed {seed}", family.generate(seed).instruction
        yield from _variants(name, family)


def web_texts() -> Iterator[tuple[str, str]]:
    """(key, text) of every family of the suite `web`."""
    yield "suite/web/families", "\n".join(web.FAMILIES)
    for name, family in web.FAMILIES.items():
        yield from _variants(name, family)


def miniwob_texts() -> Iterator[tuple[str, str]]:
    """(key, text) of every family of MiniWoB++, whose pages say themselves what to do."""
    yield "suite/miniwob/families", "\n".join(miniwob.families())
    for name, family in miniwob.families().items():
        yield from _variants(name, family)


def _variants(name: str, family: Family) -> Iterator[tuple[str, str]]:
    shapes, told = [], []
    for seed in (*SEEDS, *(seed_for("test", index) for index in SEEDS)):
        task = family.generate(seed)
        names, size = (task.id, task.family, task.suite, task.seed), (task.width, task.height)
        shapes.append("\t".join(map(str, (*names, *size, task.max_steps, task.theme, task.difficulty))))
        told.append(task.instruction)
    yield f"family/{name}/variants", "\n".join(shapes)
    yield f"family/{name}/instructions", "\n".join(told)
    yield f"family/{name}/tier", family.difficulty


TOOLS: tuple[dict[str, Any], ...] = (
    {
        "name": "click",
        "description": "Click <|im_end|> at a place",
        "parameters": {"type": "object", "properties": {"x": {"type": "integer"}, "button": {"type": "string"}}},
    },
    {"name": "say", "description": "Say é", "parameters": {"type": "object", "properties": {}}},
)
IMAGE = data_uri(1)
_SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}
_CHAT_TOOLS = [{"type": "function", "function": tool} for tool in TOOLS]
_CALLS = [{"id": "c1", "type": "function", "function": {"name": "click", "arguments": '{"x":5}'}}]
_SYSTEM = {"role": "system", "content": "Be brief"}
_SEEN = [{"type": "image_url", "image_url": {"url": IMAGE}}, {"type": "text", "text": "Look <|im_end|>"}]
_ASKED = {"role": "user", "content": _SEEN}
_CALLED = [
    _ASKED,
    {"role": "assistant", "content": "So", "tool_calls": _CALLS},
    {"role": "tool", "tool_call_id": "c1", "content": "ok"},
]
_PLAIN_TOOLS = [{name: text for name, text in tool.items() if name != "parameters"} for tool in TOOLS]
_MESSAGES_TOOLS = [_PLAIN_TOOLS[at] | {"input_schema": tool["parameters"]} for at, tool in enumerate(TOOLS)]
_SOURCE = {"type": "base64", "media_type": "image/png", "data": IMAGE.partition(",")[2]}
_USED = {"type": "tool_use", "id": "c1", "name": "click", "input": {"x": 5}}
_THOUGHT = {"role": "assistant", "content": "<think>\nso\n</think>\n\n done "}
_TURNS = [{"role": "user", "content": " a\n"}, _THOUGHT, {"role": "user", "content": "b"}, _THOUGHT, _ASKED]
_FORM = {"type": "json_schema", "json_schema": {"name": "a", "schema": _SCHEMA}}
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("chat/completions", {"messages": [_SYSTEM, _ASKED]}),
    "chat, turns": ("chat/completions", {"messages": _TURNS}),
    "chat, tools": ("chat/completions", {"messages": _CALLED, "tools": _CHAT_TOOLS}),
    "chat, tools, system": ("chat/completions", {"messages": [_SYSTEM, *_CALLED], "tools": _CHAT_TOOLS}),
    "chat, a tool": ("chat/completions", {"messages": [_ASKED], "tools": _CHAT_TOOLS, "tool_choice": "required"}),
    "chat, schema": ("chat/completions", {"messages": [_ASKED], "response_format": _FORM}),
    "messages": (
        "messages",
        {
            "max_tokens": 9,
            "system": "Be brief",
            "messages": [
                {"role": "user", "content": [{"type": "image", "source": _SOURCE}, {"type": "text", "text": "Look"}]},
                {"role": "assistant", "content": [_USED]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "ok"}]},
            ],
            "tools": _MESSAGES_TOOLS,
        },
    ),
    "responses": (
        "responses",
        {
            "instructions": "Be brief",
            "input": [
                {
                    "role": "user",
                    "content": [{"type": "input_image", "image_url": IMAGE}, {"type": "input_text", "text": "Look"}],
                },
                {"type": "function_call", "call_id": "c1", "name": "click", "arguments": '{"x":5}'},
                {"type": "function_call_output", "call_id": "c1", "output": "ok"},
            ],
            "tools": [{"type": "function", **tool} for tool in TOOLS],
        },
    ),
}
"""Path below /v1 and body of requests to the recorder."""
TEMPLATES: dict[str, tuple[str | None, str]] = {
    "bundled": (None, "error"),
    "qwen2_5_vl": (chat_templates.QWEN2_5_VL, "error"),
    "qwen3_vl": (chat_templates.QWEN3_VL, "error"),
    "tools, hermes": (chat_templates.HERMES_TOOLS, "error"),
    "tools, coder": (chat_templates.CODER_TOOLS, "error"),
    "thinking, kept": (chat_templates.QWEN3_THINKING, "preserve"),
    "thinking, forked": (chat_templates.QWEN3_THINKING, "fork"),
    "trimmed": (chat_templates.QWEN3_5, "fork"),
}


def reply_ids(renderer: ChatRenderer, prompt: Prompt, sampling: Sampling) -> list[int]:
    """The ids of a short reply that fits its grammar."""
    text = "ok" if sampling.grammar is None else '{"x": 5}'
    if sampling.grammar is not None and sampling.grammar.kind == "regex":
        assert renderer.tools.format is not None
        text = renderer.tools.format.write("", (ToolCall("say", "{}"),))
    return [*renderer.encode_text(text), renderer.stop_ids[0]]


async def prompt_texts() -> dict[str, str]:
    """The prompts that the recorder makes of requests and the grammars of replies, by template and request."""
    found: dict[str, str] = {}
    tokenizer, processor = load_processors("tiny")
    for name, (template, history) in TEMPLATES.items():
        own: Any = copy.deepcopy(tokenizer)
        if template is not None:
            own.chat_template = template
        renderer = ChatRenderer(own, source="the checkpoint", history=history)
        engine = ScriptedEngine(functools.partial(reply_ids, renderer), features=frozenset(["regex", "json_schema"]))
        recorder = Recorder(renderer, engine, ImageCache(processor))
        remote = OpenAIEndpointEngine("http://127.0.0.1:9/v1", "m", own, lambda _: b"\x89PNG", retries=0)
        async with in_process_client(create_app(recorder, KEY)) as http:
            for number, (request, (path, body)) in enumerate(REQUESTS.items()):
                engine.prompts.clear()
                engine.samplings.clear()
                headers = {"authorization": f"Bearer {recorder.open_session(str(number))}"}
                answer = await http.post(f"http://recorder/v1/{path}", json={"model": "m", **body}, headers=headers)
                said = [f"{renderer.text_of(one.token_ids)}\n{list(one.token_ids)}" for one in engine.prompts]
                assert (answer.status_code == 200) == (len(said) == 1), answer.text
                found[f"renderer/{name}/{request}"] = "".join(said) or "refused"
                for one in engine.prompts:
                    found[f"renderer/{name}/{request}, for a server"] = as_text(remote.messages(one))
                grammars = [one.grammar for one in engine.samplings if one.grammar is not None]
                if grammars:
                    found[f"renderer/{name}/{request}, grammar"] = f"{grammars[0].kind} {grammars[0].text}"
        await remote.close()
        recorder.close()
    return found


async def judge_texts() -> dict[str, str]:
    """What a model that judges is asked, by key."""
    endpoint, desktop = Endpoint(("yes", "stop")), fake_desktop.PaintedDesktop()
    await screen(desktop)
    check = VlmJudgeCheck(question="Is the lamp on the screen red?", votes=1)
    await check.measure_with(desktop, VlmJudgeClient("http://model/v1", "m", client=endpoint.client))
    return {"judge/request": as_text(endpoint.sent)}


def bundled_texts() -> Iterator[tuple[str, str]]:
    """(key, text) of the bundled model's files, and of what its tokenizer and image processor make of samples."""
    for path in sorted(TINY_FOLDER.iterdir()):
        yield f"bundled model/file/{path.name}", hashlib.sha256(path.read_bytes()).hexdigest()
    tokenizer, processor = load_processors("tiny")
    view = ScreenView.of_screen(640, 480)
    said = "\n".join(formats.get(name).prompt(view) for name in ("deskhand_json", "qwen3_vl"))
    yield "bundled model/token ids", str(tokenizer.encode(said, add_special_tokens=False))
    sizes = [np.asarray(processor(frame, return_tensors="np")["image_grid_thw"]).tolist() for frame in _frames()]
    yield "bundled model/image grids", str(sizes)


def _frames() -> list[np.ndarray]:
    sizes = ((96, 64), (320, 240), (256, 192), (640, 480), (1920, 1080))
    return [np.zeros((high, wide, 3), np.uint8) for wide, high in sizes]

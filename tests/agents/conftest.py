"""The agent against a painted desktop and an endpoint that speaks OpenAI's wire format."""

import json

import fake_desktop
import httpx2
import openai
import pytest

from deskhand.agents.desktop_agent import DesktopAgent
from deskhand.desktop.base import DesktopSpec


class Endpoint:
    """Plays replies: a text, (text, finish_reason), or an (HTTP status, error code)."""

    def __init__(self, replies: list) -> None:
        self.replies, self.asked = list(replies), []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.asked.append(json.loads(request.content))
        reply = self.replies.pop(0)
        if isinstance(reply, tuple) and isinstance(reply[0], int):
            error = {"message": "no", "type": "t", "param": None, "code": reply[1]}
            return httpx2.Response(reply[0], json={"error": error})
        text, finish = reply if isinstance(reply, tuple) else (reply, "stop")
        choices = [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish}]
        body = {"id": f"call-{len(self.asked)}", "object": "chat.completion", "created": 0, "model": "m"}
        content = json.dumps(body | {"choices": choices})
        return httpx2.Response(200, content=content, headers={"content-type": "application/json"})

    def client(self) -> openai.AsyncOpenAI:
        http = httpx2.AsyncClient(transport=httpx2.MockTransport(self))
        return openai.AsyncOpenAI(base_url="http://model/v1", api_key="k", http_client=http, max_retries=0)

    def last_texts(self) -> list[str]:
        """The text of the last user turn of each request."""
        return [asked["messages"][-1]["content"][-1]["text"] for asked in self.asked]


@pytest.fixture
def solve():
    """Play an episode with `replies`: (transcript, endpoint, desktop)."""

    async def solve(replies, config=None, *, desktop=None, model_image_size=None, **more):
        endpoint, task = replies if isinstance(replies, Endpoint) else Endpoint(replies), fake_desktop.square_task(1)
        desktop = desktop or fake_desktop.PaintedDesktop()
        await desktop.reset(DesktopSpec("plain", task.width, task.height))
        await task.setup(desktop)
        agent = DesktopAgent(config, model_image_size=model_image_size)
        return await agent.solve(desktop, task.instruction, endpoint.client(), **more), endpoint, desktop

    return solve


@pytest.fixture
def make_endpoint():
    return Endpoint

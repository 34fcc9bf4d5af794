"""A person in front of a live desktop, as the page acts for one: takes over, waits for the agent, sends events."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs

import fake_desktop
import httpx2
from live_canvas import unframed, until
from patience import limit

from deskhand.rollout.live_episode import LiveEpisode, WatchedPool
from deskhand.server.live_app import KEY_HEADER
from deskhand.server.loopback import CONTROL_HEADER
from deskhand.tasks.task import Task


async def playing(pool: WatchedPool) -> LiveEpisode:
    """The first episode of the pool, once its agent is at work."""

    def found() -> LiveEpisode | None:
        episodes = [tile.desktop for tile in pool.desktops._tiles if isinstance(tile.desktop, LiveEpisode)]
        return next((one for one in episodes if not one.refusal()), None)

    return await until(found)


async def do(live: LiveEpisode, key: str, **event: Any) -> None:
    """Perform an event when the agent waits for one."""
    await until(lambda: live.facts()["waits_for_action"])
    await live.act(key, event)


class HttpPerson:
    """A person at the page of a viewer, with the tokens of its URL."""

    def __init__(self, url: str) -> None:
        address, _, fragment = url.partition("/#")
        given = {name: value for name, (value,) in parse_qs(fragment).items()}
        self.path = f"{address}/api/runs/0/live/{given['page'].rpartition('/')[2]}"
        self.headers = {"Authorization": f"Bearer {given['token']}", CONTROL_HEADER: given["control"]}
        self.secrets = [given["token"], given["control"]]

    def _ask(self, method: str, path: str = "", **options: Any) -> httpx2.Response:
        return httpx2.request(
            method, self.path + path, headers=self.headers, timeout=limit(20), trust_env=False, **options
        )

    def facts(self) -> dict[str, Any]:
        """What the page knows; empty while there is no desktop."""
        reply = self._ask("GET")
        return unframed(reply.content)[0] if reply.status_code == 200 else {}

    def take_over(self) -> None:
        """Take over as soon as the agent is at work."""
        self._wait(lambda: self.facts().get("waits_for_action"))
        key = self._ask("POST", "/takeover").json()["key"]
        self.headers[KEY_HEADER] = key
        self.secrets.append(key)

    def do(self, **event: Any) -> None:
        """Perform an event when the agent waits for one."""
        self._wait(lambda: self.facts().get("waits_for_action"))
        reply = self._ask("POST", "/act", json=event)
        assert reply.status_code == 204, reply.text

    @staticmethod
    def _wait(condition: Callable[[], Any]) -> None:
        deadline = time.monotonic() + limit(30)
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.05)


async def wanted_square(task: Task) -> tuple[int, int]:
    """Where a person would click to solve a `fake_desktop.square_task`."""
    desktop: Any = fake_desktop.PaintedDesktop()
    await task.setup(desktop)
    target, _ = await task.first_click_targets(desktop)
    assert target is not None
    return target.center

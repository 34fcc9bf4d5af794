"""A guest's Chromium as the host asks it. Invariant: what a page says is guest-trusted data, bounded in size and time; nobody in
the guest can be asked in the browser's stead, as the pipe to it is the host's.

The protocol is Chrome's DevTools protocol over a pair of pipes (`--remote-debugging-pipe`): no port is open, and no network needed.
Which targets there were is kept, so that a developer's tool that was open for a moment is known at the end.
"""

from __future__ import annotations

import asyncio
import json
import weakref
from typing import Any

from deskhand.errors import ConfigError, EvaluatorError, InfrastructureError
from deskhand.tasks.task import StagedDesktopLike

FLAGS = (
    "--no-first-run",
    "--no-default-browser-check",
    "--password-store=basic",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-smooth-scrolling",
    "--disable-features=Translate,MediaRouter,OptimizationHints,GlobalMediaControls",
    "--hide-crash-restore-bubble",
    "--force-color-profile=srgb",
    "--disable-extensions",
    "--blink-settings=caretBlinkInterval=0",
)
ANSWER_S = 10.0
MOST_ADDRESSES = 1000
_NO_SESSION = -32001
"""The protocol's code for a session whose target is no more."""
_BROWSERS_OWN = ("chrome://omnibox",)

_browsers: weakref.WeakKeyDictionary[Any, ChromiumSession] = weakref.WeakKeyDictionary()


class PageError(Exception):
    """The page threw: what its own script says."""


class PageGone(Exception):
    """The page that set-up opened is closed: the agent's doing, while the browser still answers."""


class ChromiumSession:
    """One Chromium and the page that it was started with. Use `start`; `of(desktop)` finds it again at the time of judging."""

    def __init__(self, pipes: Any) -> None:
        self._pipes = pipes
        self._next = 0
        self._lock = asyncio.Lock()
        self._session: str | None = None
        self._addresses: set[str] = set()
        """Of everything that was opened since `mark`."""
        self._documents = 0
        """How often the page's document was made anew since `mark`."""

    async def call(self, method: str, *, browser_wide: bool = False, **parameters: Any) -> dict[str, Any]:
        """One command of the protocol. Raises `InfrastructureError` when the browser does not answer, `PageGone` when the page is
        closed, `EvaluatorError` when the browser refuses for another reason."""
        async with self._lock:
            self._next += 1
            message: dict[str, Any] = {"id": self._next, "method": method, "params": parameters}
            if self._session is not None and not browser_wide:
                message["sessionId"] = self._session
            await self._pipes.send(json.dumps(message).encode())
            async with asyncio.timeout(ANSWER_S * 2):
                while True:
                    answer = json.loads(await self._pipes.receive(ANSWER_S))
                    if answer.get("id") == self._next:
                        break
                    self._note(answer)
        if "error" in answer:
            if answer["error"].get("code") == _NO_SESSION:
                raise PageGone("the page was closed")
            raise EvaluatorError(f"the browser refused {method}: {str(answer['error'].get('message'))[:200]}")
        return answer.get("result", {})

    def _note(self, event: dict[str, Any]) -> None:
        method, told = event.get("method"), event.get("params", {})
        if method in ("Target.targetCreated", "Target.targetInfoChanged"):
            if len(self._addresses) < MOST_ADDRESSES:
                self._addresses.add(str(told.get("targetInfo", {}).get("url", ""))[:2000])
        elif method == "Page.frameNavigated" and "parentId" not in told.get("frame", {}):
            self._documents += 1

    def mark(self) -> None:
        """From here on it counts what is opened."""
        self._addresses.clear()
        self._documents = 0

    async def opened_since_mark(self) -> str:
        """What was opened beside the page's own document, in words; empty when nothing was."""
        await self.evaluate("1")  # what happened meanwhile is told before the answer
        own = str(await self.evaluate("location.href"))
        others = sorted(
            address for address in self._addresses if address != own and not address.startswith(_BROWSERS_OWN)
        )
        return "; ".join([*others[:5], *(["the page was loaded anew"] if self._documents else [])])

    async def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page, as JSON types; a promise is awaited. Raises `PageError`."""
        told = await self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in told:
            thrown = told["exceptionDetails"]
            raise PageError(str(thrown.get("exception", {}).get("description") or thrown.get("text"))[:500])
        return told["result"].get("value")

    async def attach(self, timeout_s: float = 20.0) -> None:
        """Find the page and wait until it is loaded."""
        await self.call("Target.setDiscoverTargets", browser_wide=True, discover=True)
        deadline = asyncio.get_running_loop().time() + timeout_s
        while self._session is None:
            targets = (await self.call("Target.getTargets", browser_wide=True))["targetInfos"]
            pages = [
                target
                for target in targets
                if target["type"] == "page" and not target["url"].startswith("chrome://omnibox")
            ]
            if pages:
                attached = await self.call(
                    "Target.attachToTarget", browser_wide=True, targetId=pages[0]["targetId"], flatten=True
                )
                self._session = attached["sessionId"]
                await self.call("Page.enable")
            elif asyncio.get_running_loop().time() > deadline:
                raise InfrastructureError(f"the browser showed no page within {timeout_s:g} s")
            else:
                await asyncio.sleep(0.02)
        await self.loaded(max(1.0, deadline - asyncio.get_running_loop().time()))

    async def go_to(self, address: str) -> None:
        """Show another page and wait until it is loaded."""
        await self.call("Page.navigate", url=address)
        await self.loaded()

    async def loaded(self, timeout_s: float = 20.0) -> None:
        """Wait until the page's document is complete."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while await self.evaluate("document.readyState + location.href") == "completeabout:blank" or (
            await self.evaluate("document.readyState") != "complete"
        ):
            if asyncio.get_running_loop().time() > deadline:
                raise InfrastructureError(f"the page was not loaded within {timeout_s:g} s")
            await asyncio.sleep(0.02)


async def start(desktop: StagedDesktopLike, address: str, *options: str) -> ChromiumSession:
    """Start Chromium on a page and wait until it is loaded. Raises `ConfigError` for a desktop that has no pipes to programs."""
    if not hasattr(desktop, "launch_piped"):
        raise ConfigError(
            "tasks whose page the host reads need the embedded desktop; this one has no pipes to a browser"
        )
    browser = ChromiumSession(
        await desktop.launch_piped(["chromium", *FLAGS, *options, "--remote-debugging-pipe", address])
    )
    _browsers[desktop] = browser
    await desktop.wait_window("chromium")
    await browser.attach()
    return browser


def of(desktop: StagedDesktopLike) -> ChromiumSession:
    """The browser that set-up started on this desktop. Raises `InfrastructureError` when none was."""
    if desktop not in _browsers:
        raise InfrastructureError("no browser was started on this desktop; set the task up first")
    return _browsers[desktop]

"""The host's connection to a guest's Chromium, by the DevTools protocol over pipes.

Used by the suites MiniWoB++ and `web`; `start` opens a page, `session_of` finds the session again.
`--remote-debugging-pipe` opens no port and needs no network, and nothing in the guest can answer instead of the
browser. What a page reports is still guest data. The URLs of all targets are recorded, so that a developer tool that
was open for a moment is known at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import weakref
from typing import Any

from deskhand.desktop.applications import browser
from deskhand.desktop.base import StageableDesktop, Window
from deskhand.errors import ConfigError, EvaluatorError, GuestFailure, InfrastructureError

STILL_CARET = "--blink-settings=caretBlinkInterval=0"
FLAGS = (*browser.FLAGS, "--disable-extensions", STILL_CARET, "--enable-features=EnablePortBoundCookies")
"""Cookies are bound to their port, because a guest that serves another port of the same host would get them."""
REPLY_TIMEOUT_S = 10.0
CALL_TIMEOUT_S = 14.0
"""Below the time for a check (`judge.CHECK_TIMEOUT_S`), so that guests that cause it are named."""
MAX_URLS = 1000
_PAINTED = """new Promise(done => {
  const end = Date.now() + 2000;
  const look = () => performance.getEntriesByType('paint').length || Date.now() > end ? done(1) : setTimeout(look, 10);
  look();
})"""
"""Resolves when the page was painted, or after two seconds, for a page without content."""
_NO_SESSION = -32001
"""Protocol error code for a session whose target is gone."""
_NAVIGATED = "Inspected target navigated or closed"
"""Protocol error of a script whose page was replaced by another, or loaded again, before the script ended."""
_INTERNAL_URLS = ("chrome://omnibox",)
NO_DEVELOPER_TOOLS = "--kiosk"
"""Option with which the browser opens no developer tools, by key or menu, while the host's pipe still works.

The preference that disables them, or a policy, would refuse the host, too. `ChromiumSession.leave_full_screen` then
gives the window its address bar.
"""

_browsers: weakref.WeakKeyDictionary[Any, ChromiumSession] = weakref.WeakKeyDictionary()


class PageError(Exception):
    """An exception of the page's script, or another page replaced it before the script ended."""


class PageClosedError(Exception):
    """The page that set-up opened was closed, or its process has ended; the browser still answers."""


class ChromiumSession:
    """A Chromium process and the page that it was started with."""

    def __init__(self, pipes: Any) -> None:
        self._pipes = pipes
        self._next = 0
        self._lock = asyncio.Lock()
        self._session: str | None = None
        self._urls: set[str] = set()
        """URLs of all targets since `mark`."""
        self._num_documents = 0
        """Number of document loads of the page since `mark`."""
        self._target = ""
        self._crash = ""
        """How the page's process ended, as the browser tells it; empty while it runs."""
        self._loaded_url = ""
        """URL of the page when it was loaded first."""

    async def call(self, method: str, *, browser_wide: bool = False, **parameters: Any) -> dict[str, Any]:
        """Send a protocol command and return its result.

        Raises `InfrastructureError` if the browser does not answer, `PageClosedError` if the page is closed,
        `PageError` if another page replaces this one meanwhile, `EvaluatorError` if the browser rejects the command.
        """
        async with self._lock:
            self._next += 1
            message: dict[str, Any] = {"id": self._next, "method": method, "params": parameters}
            if self._session is not None and not browser_wide:
                message["sessionId"] = self._session
            answer = await self._pipes.explained(self._answer(message))
        if "error" in answer:
            if answer["error"].get("code") == _NO_SESSION:
                raise PageClosedError("the page was closed")
            why = str(answer["error"].get("message"))[:200]
            if why == _NAVIGATED:
                raise PageError(f"another page was loaded while the script ran: {why}")
            raise EvaluatorError(f"the browser rejected {method}: {why}")
        return answer.get("result", {})

    async def _answer(self, message: dict[str, Any]) -> dict[str, Any]:
        """Send a message and return its answer. A page can send events for ever, each in time."""
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                await self._pipes.send(json.dumps(message).encode())
                while True:
                    answer = _message(await self._pipes.receive(REPLY_TIMEOUT_S))
                    if answer.get("id") == message["id"]:
                        return answer
                    self._record_event(answer)
                    if self._crash:
                        raise PageClosedError(f"the process of the page has ended ({self._crash})")
        except TimeoutError:
            raise InfrastructureError(
                f"the browser did not answer {message['method']} within {CALL_TIMEOUT_S:g} s"
            ) from None

    def _record_event(self, event: dict[str, Any]) -> None:
        method, params = event.get("method"), event.get("params", {})
        if method == "Target.targetCrashed" and params.get("targetId") == self._target:
            self._crash = str(params.get("status"))
        if method in ("Target.targetCreated", "Target.targetInfoChanged"):
            if len(self._urls) < MAX_URLS:
                self._urls.add(str(params.get("targetInfo", {}).get("url", ""))[:2000])
        elif method == "Page.frameNavigated" and "parentId" not in params.get("frame", {}):
            self._num_documents += 1

    def mark(self) -> None:
        """Start recording opened URLs."""
        self._urls.clear()
        self._num_documents = 0

    def other_urls(self) -> str:
        """Return what was opened besides the document that was loaded first, without asking the page: it may hang."""
        known = (self._loaded_url, *_INTERNAL_URLS, "about:blank")
        return "; ".join(sorted(url for url in self._urls if url and not url.startswith(known))[:5])

    async def urls_since_mark(self) -> list[str]:
        """Return the URLs of all targets; of a browser that does not answer, those that it has reported."""
        with contextlib.suppress(PageClosedError, EvaluatorError, InfrastructureError):
            await self.call("Target.getTargets", browser_wide=True)  # pending events arrive before the answer
        return sorted(self._urls)

    async def opened_since_mark(self) -> str:
        """Return what was opened besides the page's own document, as text; empty if nothing was."""
        await self.evaluate("1")  # pending events arrive before the answer
        own = str(await self.evaluate("location.href"))
        urls = sorted(url for url in self._urls if url != own and not url.startswith(_INTERNAL_URLS))
        return "; ".join([*urls[:5], *(["the page was reloaded"] if self._num_documents else [])])

    async def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression or promise in the page, as JSON types. Raises `PageError`."""
        reply = await self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in reply:
            thrown = reply["exceptionDetails"]
            raise PageError(str(thrown.get("exception", {}).get("description") or thrown.get("text"))[:500])
        return reply["result"].get("value")

    async def leave_full_screen(self, timeout_s: float = 20.0) -> None:
        """Show the window of `--kiosk` like any other. Raises `InfrastructureError` if it stays as it is."""
        target = {"browser_wide": True, "targetId": self._target}
        number = (await self.call("Browser.getWindowForTarget", **target))["windowId"]
        normal = {"windowState": "normal"}
        await self.call("Browser.setWindowBounds", browser_wide=True, windowId=number, bounds=normal)
        deadline = asyncio.get_running_loop().time() + timeout_s
        while (await self.call("Browser.getWindowForTarget", **target))["bounds"]["windowState"] == "fullscreen":
            if asyncio.get_running_loop().time() > deadline:
                raise InfrastructureError(f"the browser did not leave the full screen within {timeout_s:g} s")
            await asyncio.sleep(0.02)

    async def attach(self, timeout_s: float = 20.0) -> None:
        """Attach to the first page and wait until it is loaded."""
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
                self._target = str(pages[0]["targetId"])
                attached = await self.call(
                    "Target.attachToTarget", browser_wide=True, targetId=self._target, flatten=True
                )
                self._session = attached["sessionId"]
                await self.call("Page.enable")
            elif asyncio.get_running_loop().time() > deadline:
                raise InfrastructureError(f"the browser opened no page within {timeout_s:g} s")
            else:
                await asyncio.sleep(0.02)
        await self.wait_loaded(max(1.0, deadline - asyncio.get_running_loop().time()))

    async def wait_loaded(self, timeout_s: float = 20.0) -> None:
        """Wait until the page's document is complete and on the screen: Chromium drops clicks and keys before that."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while await self.evaluate("document.readyState + location.href") == "completeabout:blank" or (
            await self.evaluate("document.readyState") != "complete"
        ):
            if asyncio.get_running_loop().time() > deadline:
                raise InfrastructureError(f"the page was not loaded within {timeout_s:g} s")
            await asyncio.sleep(0.02)
        await self.evaluate(_PAINTED)
        self._loaded_url = str(await self.evaluate("location.href"))


def _message(data: bytes) -> dict[str, Any]:
    """Return a message of the browser. Raises `GuestFailure` for what it does not send: a guest wrote to its pipe."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not all(isinstance(found.get(key, {}), dict) for key in ("error", "params")):
        raise GuestFailure("a guest wrote to the pipe of the browser")
    return found


async def start(desktop: StageableDesktop, url: str, *options: str) -> ChromiumSession:
    """Start Chromium on a page and wait until it is loaded. Raises `ConfigError` unless the desktop is local."""
    session, _ = await _launch(desktop, ["chromium", *FLAGS, *options], url)
    await session.attach()
    return session


async def start_shell(desktop: StageableDesktop, url: str, width: int, height: int) -> ChromiumSession:
    """Show a page of this size at the top left, without a browser around it, and wait until it is loaded.

    It starts in less processor time than the browser. Raises `ConfigError` unless the desktop is local.
    """
    argv = ["chromium-shell", *browser.SHELL_FLAGS, STILL_CARET, f"--content-shell-host-window-size={width}x{height}"]
    session, window = await _launch(desktop, argv, url)
    await desktop.place_window(window, 0, 0, width, height)  # the manager makes it as small as the screen
    await session.attach()
    await session.call("Page.bringToFront")  # or the page has no focus until the first click or key
    return session


async def _launch(desktop: StageableDesktop, argv: list[str], url: str) -> tuple[ChromiumSession, Window]:
    launch_piped = getattr(desktop, "launch_piped", None)
    if launch_piped is None:
        raise ConfigError("the browser needs a local desktop: the host controls it by pipes (desktop.backend: local)")
    session = ChromiumSession(await launch_piped([*argv, "--remote-debugging-pipe", url]))
    _browsers[desktop] = session
    return session, (await desktop.wait_window("chromium"))[0]


def session_of(desktop: StageableDesktop) -> ChromiumSession:
    """Return the session that set-up started on this desktop. Raises `InfrastructureError` if there is none."""
    if desktop not in _browsers:
        raise InfrastructureError("no browser was started on this desktop; run the task's setup first")
    return _browsers[desktop]

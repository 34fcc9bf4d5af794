"""Debian's Chromium without a screen, driven by the DevTools protocol over pipes: what a person would see of a page."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from deskhand.desktop.local.nul_pipes import NulPipes
from deskhand.tasks.chromium import FLAGS, ChromiumSession, PageError

CHROMIUM = shutil.which("chromium")
_WATCH = """window.problems = [];
addEventListener('error', event => problems.push('error: ' + event.message));
addEventListener('unhandledrejection', event => problems.push('rejected: ' + event.reason));
document.addEventListener('securitypolicyviolation', event => problems.push('policy: ' + event.blockedURI));
"""


class Page(ChromiumSession):
    """The browser's page."""

    async def open(self, url: str) -> None:
        await self.call("Page.navigate", url=url)

    async def until(self, expression: str, timeout_s: float = 60.0) -> Any:
        """The value of an expression, as soon as it is true. Waits for the page, and fails with what it shows."""
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    with suppress(PageError):  # the page is being loaded
                        if found := await self.evaluate(f"(found => found instanceof Node || found)({expression})"):
                            return found
                    await asyncio.sleep(0.02)
        except TimeoutError:
            shown = await self.evaluate("location.href + ' ' + problems.join('; ') + ' ' + document.body.innerText")
            raise AssertionError(f"never true: {expression}\n{shown[:2000]}") from None

    async def text(self, selector: str = "body") -> str:
        return await self.evaluate(
            f"[...document.querySelectorAll({json.dumps(selector)})].map(n => n.innerText).join('\\n')"
        )

    async def press(self, key: str, code: int = 0, text: str = "") -> None:
        for kind in ("rawKeyDown", "keyUp"):
            await self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                windowsVirtualKeyCode=code,
                text=text if kind != "keyUp" else "",
            )

    async def size(self, width: int, height: int, *, dark: bool = False) -> None:
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])

    async def picture(self, path: Path, *, whole: bool = True) -> None:
        found = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        await asyncio.to_thread(path.write_bytes, base64.b64decode(found["data"]))


@asynccontextmanager
async def browser(folder: Path) -> AsyncIterator[Page]:
    """A page of a new browser, whose profile and pipes are in `folder`."""
    assert CHROMIUM is not None
    pipes = NulPipes(folder / "devtools")
    options = ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", f"--user-data-dir={folder / 'profile'}"]
    command = [CHROMIUM, *FLAGS, *options, "--remote-debugging-pipe", "about:blank"]
    process = await asyncio.create_subprocess_exec(
        "sh", "-c", 'exec "$@" 3<"$0.in" 4>"$0.out" 2>/dev/null', str(folder / "devtools"), *command
    )
    try:
        page = Page(pipes)
        await _attach(page)
        await page.call("Page.addScriptToEvaluateOnNewDocument", source=_WATCH)
        yield page
    finally:
        pipes.close()  # the browser ends with its pipe
        with suppress(TimeoutError):
            async with asyncio.timeout(10):
                await process.wait()
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _attach(page: Page) -> None:
    """Attach to the empty page that the browser opens with, which the judge's `attach` would wait to see loaded."""
    while True:
        targets = (await page.call("Target.getTargets", browser_wide=True))["targetInfos"]
        pages = [target for target in targets if target["type"] == "page"]
        if pages:
            break
        await asyncio.sleep(0.02)
    found = await page.call("Target.attachToTarget", browser_wide=True, targetId=pages[0]["targetId"], flatten=True)
    page._session = found["sessionId"]
    await page.call("Page.enable")

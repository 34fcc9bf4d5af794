"""Building blocks of the suite's web applications: routes on a JSON state, and HTML without scripts.

An application is a `WebApp` in `suites.web.apps`. Its views read a state, its actions change it; the server process
(`suites.web.server`) mounts all of them. Actions are also used by families, to say what the right end is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape, unescape
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route

State = dict[str, Any]
"""An application's part of a site's state (JSON types): lists of items, each with an `id`."""
MAX_TEXT, MAX_ITEMS = 2000, 300
"""What guests may store: characters of a field, and items of a list."""
TOKEN = "token"
"""Hidden field of a form; see `server.Site.form_token`."""
_POST_FORM = re.compile(r"<form action='([^']*)' method=post[^>]*>")
_STYLE = """body{{font:{size}px sans-serif;margin:0;background:{color}}}
header{{background:{accent};color:#fff;padding:10px 20px}}header a{{color:#fff;margin-left:22px}}
nav{{background:#222;padding:5px 20px}}nav a{{color:#eee;margin-right:22px;text-decoration:none}}
main{{padding:8px 20px}}table{{border-collapse:collapse;background:#fff}}
td,th{{padding:5px 14px;text-align:left;border-bottom:1px solid #ddd}}label{{display:block;margin:9px 0 3px}}
label.tick{{margin:9px 0}}input,select,textarea,button{{font:inherit;padding:3px 7px}}button{{margin:6px 8px 6px 0}}
form.inline{{display:inline}}p.error{{color:#a00;font-weight:bold}}textarea{{width:440px;height:90px}}
input[type=text]{{width:300px}}:focus{{outline:3px solid #2a6fdb}}"""


class Invalid(Exception):
    """What was sent is refused; the page shows the text, and nothing has changed."""


@dataclass(frozen=True)
class Page:
    """Title and HTML of a page's main part."""

    title: str
    body: str


View = Callable[[State, Mapping[str, str]], Page]
Action = Callable[[State, Mapping[str, str]], str]
"""Changes the state and returns the path to go to. Raises `Invalid`."""


class WebApp:
    """An application: `links` are shown on top of every page."""

    def __init__(self, name: str, title: str, links: dict[str, str]) -> None:
        self.name = name
        self.title = title
        self._links = links
        self._routes: list[Route] = []

    @property
    def home(self) -> str:
        """Path of the first of its links."""
        return f"/{self.name}{next(iter(self._links.values()))}"

    @property
    def mount(self) -> Mount:
        return Mount(f"/{self.name}", routes=self._routes)

    @property
    def action_paths(self) -> list[str]:
        """The paths to which forms are sent, such as "/mail/send"."""
        return [f"/{self.name}{route.path}" for route in self._routes if "POST" in (route.methods or ())]

    def view(self, path: str) -> Callable[[View], View]:
        """Register a function from state and parameters (of path and query) to a page."""

        def register(view: View) -> View:
            async def endpoint(request: Request) -> Response:
                values = {**request.query_params, **request.path_params}
                try:
                    page = view(request.scope["site"].state[self.name], values)
                except (Invalid, KeyError, StopIteration, ValueError):
                    page = Page("Not found", "<p>There is no such page.</p>")
                return self._render(request, page)

            self._routes.append(Route(path, endpoint, methods=["GET"]))
            return view

        return register

    def action(self, path: str) -> Callable[[Action], Action]:
        """Register a function that a form calls with the parameters of the path and the form's fields."""

        def register(action: Action) -> Action:
            async def endpoint(request: Request) -> Response:
                form = await request.form(max_files=0, max_fields=30)
                sent = {name: str(value).replace("\r\n", "\n") for name, value in form.items()}
                site = request.scope["site"]
                if not site.accepts_token(request.scope["path"], sent.pop(TOKEN, "")):
                    return PlainTextResponse("refused\n", status_code=403)
                state = site.state[self.name]
                try:
                    if any(len(value) > MAX_TEXT for value in sent.values()):
                        raise Invalid("The text is too long.")
                    if any(isinstance(items, list) and len(items) >= MAX_ITEMS for items in state.values()):
                        raise Invalid("There is no space left.")
                    target = action(state, {**sent, **request.path_params})
                except (Invalid, KeyError, StopIteration, ValueError) as error:
                    text = str(error) if isinstance(error, Invalid) else "This is not possible."
                    return self._render(request, Page("Not accepted", f"<p class=error>{escape(text)}</p>"))
                return RedirectResponse(f"/{self.name}{target}", status_code=303)

            self._routes.append(Route(path, endpoint, methods=["POST"]))
            return action

        return register

    def _render(self, request: Request, page: Page) -> HTMLResponse:
        links = "".join(f"<a href='/{self.name}{path}'>{escape(name)}</a>" for name, path in self._links.items())
        style = _STYLE.format(**request.scope["site"].style)
        title = f"<title>{escape(page.title)} - {self.title}</title>"
        head = f"<meta charset=utf-8>{title}<base href='/{self.name}/'><style>{style}</style>"
        top = f"<nav>{request.scope['menu']}</nav><header><b>{self.title}</b>{links}</header>"
        body = _POST_FORM.sub(lambda found: f"{found[0]}{self._token_field(request, found[1])}", page.body)
        return HTMLResponse(f"<!doctype html>{head}{top}<main><h2>{escape(page.title)}</h2>{body}</main>")

    def _token_field(self, request: Request, target: str) -> str:
        token = request.scope["site"].form_token(f"/{self.name}/{unescape(target)}")
        return f"<input type=hidden name={TOKEN} value={token}>"


def find(items: Sequence[dict[str, Any]], key: object) -> dict[str, Any]:
    """Return the item with an id. Raises `StopIteration`."""
    return next(item for item in items if item["id"] == int(str(key)))


def add(items: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    """Append an item with a new id."""
    items.append({"id": max((item["id"] for item in items), default=0) + 1, **fields})
    return items[-1]


def required(values: Mapping[str, str], *names: str) -> list[str]:
    """Return fields without surrounding white space. Raises `Invalid` if one is empty."""
    texts = [values.get(name, "").strip() for name in names]
    if missing := [name for name, text in zip(names, texts, strict=True) if not text]:
        raise Invalid(f"Please fill in: {', '.join(missing)}.")
    return texts


def link(path: str, text: object) -> str:
    """Return a link to a path of the same application."""
    return f"<a href='{escape(path.removeprefix('/'))}'>{escape(str(text))}</a>"


def item_link(kind: str, item: Mapping[str, Any], text: object) -> str:
    """Return a link to the page of an item."""
    return link(f"/{kind}/{item['id']}", text)


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table of HTML cells."""
    cells = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{''.join(f'<th>{escape(name)}</th>' for name in head)}</tr>{cells}</table>"


def text_field(name: str, title: str, value: str = "", *, long: bool = False) -> str:
    label = f"<label for={name}>{title}</label>"
    if long:
        return f"{label}<textarea id={name} name={name}>{escape(value)}</textarea>"
    return f"{label}<input type=text id={name} name={name} value='{escape(value)}' autocomplete=off>"


def choice(name: str, title: str, options: Iterable[str], chosen: str = "") -> str:
    shown = "".join(f"<option{' selected' if each == chosen else ''}>{escape(each)}</option>" for each in options)
    return f"<label for={name}>{title}</label><select id={name} name={name} autocomplete=off>{shown}</select>"


def tick(name: str, title: str, *, on: bool = False) -> str:
    box = f"<input type=checkbox id={name} name={name} autocomplete=off{' checked' if on else ''}>"
    return f"<div>{box} <label style='display:inline' for={name}>{title}</label></div>"


def form(path: str, button: str, *fields: str, inline: bool = False, get: bool = False) -> str:
    """Return a form that is sent to a path of the same application; `_render` adds its token."""
    target, method = escape(path.removeprefix("/")), "get" if get else "post"
    press = f"<button>{button}</button>" if inline else f"<div><button>{button}</button></div>"
    style = " class=inline" if inline else ""
    return f"<form action='{target}' method={method}{style}>{''.join(fields)}{press}</form>"

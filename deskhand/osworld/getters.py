"""Data that OSWorld's getters return, read from the desktop by Deskhand.

`GetterReader.read` copies everything that a metric will see before scoring starts; nothing written by a guest is
executed. Missing files are None, as metrics expect. Types that need the live web or an account are unavailable; their
tasks are errored, never scored 0.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from pathlib import PurePosixPath
from typing import Any

from deskhand.errors import EvaluatorError
from deskhand.osworld import accessibility_tree, chrome_devtools
from deskhand.osworld.official_evaluators import Files, GetterRequest, Read, Value
from deskhand.osworld.setup_runner import SetupRunner
from deskhand.tasks import document_readers
from deskhand.tasks.document_readers import InvalidDocument
from deskhand.tasks.formats import osworld_getters
from deskhand.tasks.formats.osworld_getters import Getter
from deskhand.tasks.formats.requirements import LIVE_WEB_GETTERS, is_remote
from deskhand.tasks.guest_files import decode_text, list_folder
from deskhand.tasks.subprocess_call import read_in_subprocess

_CHROME = "/home/user/.config/google-chrome"
_PROFILE = f"{_CHROME}/Default"
_BY_GETTER: dict[str, tuple[str, ...]] = {
    "history": (f"{_PROFILE}/History",),
    "cookie_data": (f"{_PROFILE}/Cookies",),
    "enabled_experiments": (f"{_CHROME}/Local State",),
    "chrome_language": (f"{_CHROME}/Local State",),
    "enable_enhanced_safety_browsing": (f"{_PROFILE}/Preferences",),
    "find_unpacked_extension_path": (f"{_PROFILE}/Preferences",),
    "find_installed_extension_name": (f"{_PROFILE}/Preferences",),
    "content_from_vm_file": ("{path}",),
    "background_image_in_slide": ("{ppt_file_path}",),
    "audio_in_slide": ("{ppt_file_path}",),
    "rule_relativeTime": (),
}
"""Files that OSWorld's own getter converts, in the judge process; in braces, parameters of the getter."""
_FILES = {
    "vlc_config": "/home/user/.config/vlc/vlcrc",
    "gimp_config_file": "/home/user/.config/GIMP/2.10/{file_name}",
    "vscode_config": "{path}",
}
LIVE_KINDS = frozenset(
    {
        "vm_command_line", "vm_command_error", "vm_terminal_output", "accessibility_tree", "active_url_from_accessTree",
        "chrome_appearance_mode_ui", "open_tabs_info", "vm_window_size", "list_directory", "default_video_player",
        "vlc_playing_info",
    }
)  # fmt: skip
"""Getter types that depend on a running guest program; their values are untrusted."""
ACCESSIBILITY_KINDS = frozenset(
    {"vm_terminal_output", "accessibility_tree", "active_url_from_accessTree", "chrome_appearance_mode_ui"}
)
_FONT_SIZES = {"default_fixed_font_size": 13, "default_font_size": 16, "minimum_font_size": 13}
_SCHEMES = {1: "light", 2: "dark"}


def _at(data: Any, *keys: str) -> Any:
    for key in keys:
        data = data.get(key) if isinstance(data, dict) else None
    return data


def _json_bool(value: Any) -> str:
    return "true" if value else "false"


def _mode(data: Any) -> str:
    """Return the appearance: "light", "dark" or "system"."""
    chosen = _at(data, "browser", "theme", "color_scheme2")
    scheme = chosen if chosen is not None else _at(data, "browser", "theme", "color_scheme")
    return _SCHEMES.get(scheme, "system") if isinstance(scheme, int) else "system"


async def _json_object(data: bytes | None) -> dict[str, Any] | None:
    try:
        found = await read_in_subprocess(document_readers.read_json, data) if data else None
    except InvalidDocument:
        return None
    return found if isinstance(found, dict) else None


_PREFERENCES: dict[str, Callable[[Any], Any]] = {
    "default_search_engine": lambda data: (
        _at(data, "default_search_provider_data", "template_url_data", "short_name") or "Google"
    ),
    "profile_name": lambda data: _at(data, "profile", "name"),
    "chrome_font_size": lambda data: _at(data, "webkit", "webprefs") or _FONT_SIZES,
    "enable_do_not_track": lambda data: _json_bool(_at(data, "enable_do_not_track")),
    "enable_safe_browsing": lambda data: _json_bool(
        _at(data, "safebrowsing", "enhanced") or _at(data, "safebrowsing", "enabled")
    ),
    "new_startup_page": lambda data: _json_bool(
        _at(data, "session") is None or _at(data, "session", "restore_on_startup") == 5
    ),
    "data_delete_automacally": lambda data: _json_bool(
        _at(data, "profile", "default_content_setting_values") is not None
    ),
    "chrome_color_scheme": _mode,
    "chrome_appearance_mode_ui": _mode,
}
"""Value by getter type, from Chrome's settings. Missing or invalid files give the default, as in OSWorld."""
_FROM_TABLES = {*_BY_GETTER, *_FILES, *_PREFERENCES}
KINDS = LIVE_KINDS | _FROM_TABLES | {
    "vm_file", "cloud_file", "cache_file", "rule", "time_diff_range", "vm_screen_size", "vm_wallpaper", "bookmarks",
    "shortcuts_on_desktop",
}  # fmt: skip
"""Supported getter types."""
WEB_KINDS = LIVE_WEB_GETTERS | {
    "active_tab_info", "active_tab_url_parse", "page_info", "url_dashPart",
}  # fmt: skip
"""Getter types that load pages, or ask a service, of the live web."""
PROFILE_KINDS = {*_PREFERENCES, "bookmarks"} | {
    kind for kind, paths in _BY_GETTER.items() if any(path.startswith(_CHROME) for path in paths)
}
"""Getter types read from Chrome's profile."""
_VIDEO_TYPES = (
    "3gp 3gpp 3gpp2 avi divx dv fli flv mp2t mp4 mp4v-es mpeg mpeg-system msvideo ogg quicktime vnd.divx vnd.mpegurl "
    "vnd.rn-realvideo webm x-anim x-avi x-flc x-fli x-flv x-m4v x-matroska x-mpeg x-mpeg-system x-mpeg2 x-ms-asf "
    "x-ms-asf-plugin x-ms-asx x-ms-wm x-ms-wmv x-ms-wmx x-ms-wvx x-msvideo x-nsv x-ogm x-theora x-theora+ogg "
)
"""Video types that OSWorld queries twice."""
_VIDEO_TYPES_ONCE = "x-ogm+ogg"
"""Video type queried once. The most frequent player is the default."""
_PLAYERS = 'for kind; do printf "%s\\t%s\\n" "$kind" "$(xdg-mime query default "video/$kind" 2>/dev/null)"; done'
_VLC_STATUS = """\
import sys, urllib.request
handler = urllib.request.HTTPBasicAuthHandler()
handler.add_password("VLC stream", "http://127.0.0.1:8080/", "", "password")
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), handler)
with opener.open("http://127.0.0.1:8080/requests/status.xml", timeout=10) as reply:
    sys.stdout.buffer.write(reply.read())
"""


class GetterReader:
    """Reads getter data from the machine of `runner`."""

    def __init__(self, runner: SetupRunner) -> None:
        self._runner = runner
        self._client, self._guest, self._desktop = runner.client, runner.client.guest, runner.client.desktop

    async def read(self, getter: Any) -> Read:  # noqa: C901
        """Return the data of `getter`.

        Raises `EvaluatorError` if its type is unavailable, `InfrastructureError` if the desktop fails.
        """
        kind = getattr(getter, "type", "")
        if why := unavailable(getter):
            raise EvaluatorError(f"getter {kind!r}: {why}")
        match kind:
            case "vm_file" | "cloud_file":
                return await self._files(getter)
            case "cache_file":
                if getter.path not in self._runner.outputs:
                    raise EvaluatorError(f"no set-up step wrote {getter.path!r}")
                return Files(((_name(getter.path), self._runner.outputs[getter.path]),))
            case "rule":
                return Value(getter.rules)
            case "time_diff_range":
                return Value(getter.diff_range_in_minutes)
            case "vm_command_line" | "vm_command_error":
                body = {"command": getter.command, "shell": bool(getter.shell)}
                return await self._reply("/execute", "output" if kind == "vm_command_line" else "error", json=body)
            case "vm_terminal_output":
                await self._tree()
                return await self._reply("/terminal", "output", method="GET")
            case "accessibility_tree":
                return Value(await self._tree())
            case "active_url_from_accessTree":
                return Value(await self._active_url(getter))
            case "chrome_appearance_mode_ui" if mode := await self._read_tree(accessibility_tree.shown_mode):
                return Value(mode)
            case "open_tabs_info":
                return Value(await self._tabs())
            case "vm_screen_size":
                return Value(dict(zip(("width", "height"), self._client.size, strict=True)))
            case "vm_window_size":
                return await self._reply("/window_size", data={"app_class_name": getter.app_class_name})
            case "list_directory":
                return await self._reply("/list_directory", "directory_tree", json={"path": getter.path})
            case "vm_wallpaper":
                reply = await self._client.request("POST", "/wallpaper")
                return Files(((_name(getter.dest), reply.content if reply.status_code == 200 else b""),))
            case "default_video_player":
                return Value(await self._video_player())
            case "vlc_playing_info":
                result = await self._desktop.run(["python3", "-I", "-S", "-c", _VLC_STATUS])
                return Files(((_name(getter.dest), result.stdout if result.returncode == 0 else None),))
            case "shortcuts_on_desktop":
                return Value(await self._shortcuts())
            case "bookmarks":
                found = await _json_object(await self._file(f"{_PROFILE}/Bookmarks"))
                return Value([] if found is None else _at(found, "roots") or {})
        return await self._from_tables(kind, getter)

    async def _from_tables(self, kind: str, getter: Any) -> Read:
        if kind in _BY_GETTER:
            config = getter.model_dump(by_alias=True, exclude_unset=True)
            if kind == "rule_relativeTime" and isinstance(config["rules"], dict):
                # The guest's time zone; OSWorld would look it up on the web.
                config["rules"] = {"timezone": "UTC"} | config["rules"]
            paths = [path.format_map(config) for path in _BY_GETTER[kind]]
            return GetterRequest(kind, config, {path: await self._file(path) for path in paths})
        if kind in _FILES:
            path = _FILES[kind].format_map(vars(getter))
            return Files(((_name(getattr(getter, "dest", "")), await self._file(path)),))
        return Value(_PREFERENCES[kind](await _json_object(await self._file(f"{_PROFILE}/Preferences"))))

    async def _shortcuts(self) -> dict[str, str]:
        """Return the text of each .desktop file on the desktop, by its name."""
        found: dict[str, str] = {}
        for name in await list_folder(self._desktop, "Desktop"):
            if name.endswith(".desktop"):
                text = decode_text(await self._file(f"/home/user/Desktop/{name}"))
                found |= {} if text is None else {name: text}
        return found

    async def _file(self, path: str) -> bytes | None:
        try:
            return await self._guest.read(await self._guest.expand(path))
        except OSError:
            return None  # missing, a directory, or a link out of the home: no file for the metric

    async def _files(self, getter: osworld_getters.FileGetter) -> Files:
        """Return the files that the metric gets: the first, or those in `gives`."""
        now, files = datetime.now(), list[tuple[str, bytes | None]]()
        for path, dest in zip(_texts(getter.path), _texts(getter.dest), strict=False):
            name = _name(dest)
            if getter.type == "cloud_file":
                files.append((name, self._runner.cache.read(path)))
                continue
            if getter.time_suffix and not getter.multi:
                stem, end = posixpath.splitext(name)
                name = f"{stem}_{now.strftime(getter.time_format or '%Y%m%d_%H%M%S')}{end}"
            files.append((name, await self._file(path)))
        indices = sorted(set(getter.gives if getter.gives is not None else [0]))
        chosen = tuple(files[index] for index in indices if 0 <= index < len(files))
        return Files(chosen, single=len(chosen) == 1)

    async def _reply(self, path: str, key: str | None = None, *, method: str = "POST", **body: Any) -> Value:
        """Return the server's reply, or its value at `key`; None if it refuses."""
        reply = await self._client.request(method, path, **body)
        if reply.status_code != 200:
            return Value(None)
        return Value(reply.json() if key is None else reply.json()[key])

    async def _tree(self) -> str:
        tree = await self._desktop.accessibility_tree()
        if tree is None:
            raise EvaluatorError("this desktop has no accessibility tree; lease it with accessibility enabled")
        return tree

    async def _active_url(self, getter: osworld_getters.AddressGetter) -> str | None:
        """Return the text of Chrome's address bar, with the task's prefix or https://."""
        shown = await self._read_tree(accessibility_tree.shown_url)
        if not shown:
            return None
        prefix = getter.goto_prefix if "goto_prefix" in getter.model_fields_set else "https://"
        return f"{prefix or ''}{shown}"

    async def _read_tree(self, read: Callable[[bytes], str | None]) -> str | None:
        """Return what `read` finds in the accessibility tree, None in an invalid one; guests write its texts."""
        tree = await self._tree()
        try:
            return await read_in_subprocess(read, tree.encode("utf-8", errors="replace"))
        except InvalidDocument:
            return None

    async def _tabs(self) -> list[dict[str, str]]:
        try:
            tabs = await chrome_devtools.list_tabs(self._guest)
        except chrome_devtools.DevToolsUnavailable:
            return []  # as OSWorld's getter: Chrome is closed or does not listen
        return [{"title": tab["title"], "url": tab["url"]} for tab in tabs]

    async def _video_player(self) -> str:
        twice, once = _VIDEO_TYPES.split(), _VIDEO_TYPES_ONCE.split()
        result = await self._desktop.run(["/bin/sh", "-c", _PLAYERS, "sh", *twice, *once], timeout_s=60.0)
        lines = (line.partition("\t") for line in result.stdout.decode(errors="replace").splitlines())
        players = {kind: player for kind, _, player in lines if player}
        counts = Counter(players[kind] + "\n" for kind in (*twice, *twice, *once) if kind in players)
        return counts.most_common(1)[0][0] if counts else "unknown"


def unavailable(getter: Getter) -> str | None:
    """Return why a getter cannot be read on any of Deskhand's desktops, or None."""
    kind = getattr(getter, "type", "")
    if isinstance(getter, osworld_getters.OtherGetter):
        return "a value has another type than its function takes" if kind in osworld_getters.TYPES else "unknown type"
    if getter is None or isinstance(getter, osworld_getters.EmptyGetter) or kind in KINDS:
        if (
            isinstance(getter, osworld_getters.FileGetter)
            and kind == "cloud_file"
            and not all(map(is_remote, _texts(getter.path)))
        ):
            return "it has no URL"
        return None
    if kind in osworld_getters.WINDOWS_ONLY:
        return "Windows Agent Arena only"
    if isinstance(getter, osworld_getters.DriveGetter):
        return "needs a web account"
    return "reads live web pages" if kind in WEB_KINDS else "not implemented"


def _texts(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def _name(dest: str | list[str]) -> str:
    return PurePosixPath(_texts(dest)[0]).name or "file"

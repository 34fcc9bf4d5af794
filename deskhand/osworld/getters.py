"""Data that OSWorld's getters return, read from the desktop by Deskhand.

`GetterReader.read` copies everything that a metric will see before scoring starts; nothing written by a guest is
executed. Missing files are None, as metrics expect. Types that need the live web or an account are unavailable; their
tasks are errored, never scored 0.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import PurePosixPath
from typing import Any
from xml.etree import ElementTree

from deskhand.errors import EvaluatorError
from deskhand.osworld import chrome_devtools, chrome_preferences
from deskhand.osworld.official_evaluators import Files, GetterRequest, Read, Value
from deskhand.osworld.setup_runner import SetupRunner
from deskhand.tasks.formats import osworld_getters
from deskhand.tasks.formats.osworld_getters import Getter
from deskhand.tasks.formats.requirements import is_remote

_SELECTED = "{https://accessibility.ubuntu.example.org/ns/state}selected"
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
    "rule_relativeTime": (),
}
"""Files that OSWorld's own getter converts, in the judge process."""
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
_BROWSERS = ("Google Chrome", "Google-chrome", "Chromium")
_MODES = {"light": "light", "dark": "dark", "device": "system"}
_BY_VALUE = frozenset(
    {
        "vm_file",
        "cloud_file",
        "cache_file",
        "content_from_vm_file",
        "rule",
        "time_diff_range",
        "vm_screen_size",
        "vm_wallpaper",
    }
    | {"background_image_in_slide", "audio_in_slide", "bookmarks"}
)
KINDS = _BY_VALUE | LIVE_KINDS | frozenset(_BY_GETTER) | frozenset(_FILES) | frozenset(chrome_preferences.VALUES)
"""Supported getter types."""
PROFILE_KINDS = (
    frozenset(chrome_preferences.VALUES) | {kind for kind, paths in _BY_GETTER.items() if paths} | {"bookmarks"}
)
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
        self._kinds: Mapping[str, Callable[[Any], Any]] = {
            "vm_file": self._vm_file,
            "cloud_file": self._cloud_file,
            "cache_file": self._step_output,
            "content_from_vm_file": self._content,
            "background_image_in_slide": self._slides,
            "audio_in_slide": self._slides,
            "rule": self._rule,
            "time_diff_range": self._time_range,
            "vm_command_line": self._command,
            "vm_command_error": self._command,
            "vm_terminal_output": self._terminal,
            "accessibility_tree": self._tree,
            "active_url_from_accessTree": self._active_url,
            "chrome_appearance_mode_ui": self._appearance,
            "open_tabs_info": self._tabs,
            "vm_screen_size": self._screen_size,
            "vm_window_size": self._window_size,
            "vm_wallpaper": self._wallpaper,
            "list_directory": self._directory_tree,
            "default_video_player": self._video_player,
            "vlc_playing_info": self._vlc_status,
            "bookmarks": self._bookmarks,
        }

    async def read(self, getter: Getter) -> Read:
        """Return the data of `getter`.

        Raises `EvaluatorError` if its type is unavailable, `InfrastructureError` if the desktop fails.
        """
        kind = getattr(getter, "type", "")
        if why := unavailable(getter):
            raise EvaluatorError(f"getter {kind!r}: {why}")
        if (method := self._kinds.get(kind)) is not None:
            return await method(getter)
        if kind in _BY_GETTER:
            assert getter is not None
            config = getter.model_dump(by_alias=True, exclude_unset=True)
            if kind == "rule_relativeTime" and isinstance(config["rules"], dict):
                # The guest's time zone; OSWorld would look it up on the web.
                config["rules"] = {"timezone": "UTC"} | config["rules"]
            return GetterRequest(kind, config, {path: await self._file(path) for path in _BY_GETTER[kind]})
        if kind in _FILES:
            path = _FILES[kind].format(file_name=getattr(getter, "file_name", ""), path=getattr(getter, "path", ""))
            return Files(((_name(getattr(getter, "dest", "")), await self._file(path)),))
        return Value(chrome_preferences.value(kind, await self._file(f"{_PROFILE}/Preferences")))

    async def _file(self, path: str) -> bytes | None:
        try:
            return await self._guest.read(await self._guest.expand(path))
        except OSError:
            return None  # missing, a directory, or a link out of the home: no file for the metric

    async def _vm_file(self, getter: osworld_getters.FileGetter) -> Read:
        now = datetime.now()

        def named(name: str) -> str:
            if getter.time_suffix and not getter.multi:
                stem, end = posixpath.splitext(name)
                return f"{stem}_{now.strftime(getter.time_format or '%Y%m%d_%H%M%S')}{end}"
            return name

        return _select_files(getter, [(named(name), await self._file(path)) for path, name in _pairs(getter)])

    async def _cloud_file(self, getter: osworld_getters.FileGetter) -> Read:
        return _select_files(getter, [(name, self._runner.cache.read(path)) for path, name in _pairs(getter)])

    async def _step_output(self, getter: osworld_getters.StepOutputGetter) -> Read:
        if getter.path not in self._runner.outputs:
            raise EvaluatorError(f"no set-up step wrote {getter.path!r}")
        return Files(((_name(getter.path), self._runner.outputs[getter.path]),))

    async def _content(self, getter: osworld_getters.ContentGetter) -> Read:
        config = getter.model_dump(exclude_unset=True)
        return GetterRequest(getter.type, config, {getter.path: await self._file(getter.path)})

    async def _slides(self, getter: osworld_getters.SlideGetter) -> Read:
        config = getter.model_dump(exclude_unset=True)
        return GetterRequest(getter.type, config, {getter.ppt_file_path: await self._file(getter.ppt_file_path)})

    async def _rule(self, getter: osworld_getters.RuleGetter) -> Read:
        return Value(getter.rules)

    async def _time_range(self, getter: osworld_getters.TimeRangeGetter) -> Read:
        return Value(getter.diff_range_in_minutes)

    async def _command(self, getter: osworld_getters.CommandGetter) -> Read:
        body = {"command": getter.command, "shell": bool(getter.shell)}
        reply = await self._client.request("POST", "/execute", json=body)
        if reply.status_code != 200:
            return Value(None)
        return Value(reply.json()["output" if getter.type == "vm_command_line" else "error"])

    async def _terminal(self, getter: osworld_getters.BareGetter) -> Read:
        await self._tree_text()
        reply = await self._client.request("GET", "/terminal")
        return Value(reply.json()["output"] if reply.status_code == 200 else None)

    async def _tree_text(self) -> str:
        tree = await self._desktop.accessibility_tree()
        if tree is None:
            raise EvaluatorError("this desktop has no accessibility tree; lease it with accessibility enabled")
        return tree

    async def _tree(self, getter: osworld_getters.BareGetter) -> Read:
        return Value(await self._tree_text())

    async def _active_url(self, getter: osworld_getters.AddressGetter) -> Read:
        """Return the text of Chrome's last address bar, with the task's prefix or https://."""
        shown = [
            entry.text or ""
            for application in await self._browsers()
            for entry in application.iter("entry")
            if entry.get("name") == "Address and search bar"
        ]
        if not shown or not shown[-1]:
            return Value(None)
        prefix = getter.goto_prefix if "goto_prefix" in getter.model_fields_set else "https://"
        return Value(f"{prefix or ''}{shown[0]}")

    async def _browsers(self) -> list[ElementTree.Element]:
        root = ElementTree.fromstring(await self._tree_text())
        return [application for application in root.iter("application") if application.get("name") in _BROWSERS]

    async def _appearance(self, getter: osworld_getters.BareGetter) -> Read:
        """Return what the settings page shows, or the profile's value (which Chrome writes late) if it is not open."""
        for application in await self._browsers():
            for combo_box in application.iter("combo-box"):
                shown = [
                    item.get("name", "").strip().lower()
                    for item in combo_box.iter("menu-item")
                    if _SELECTED in item.attrib
                ]
                if combo_box.get("name") == "Mode" and shown and shown[0] in _MODES:
                    return Value(_MODES[shown[0]])
        return Value(chrome_preferences.value(getter.type, await self._file(f"{_PROFILE}/Preferences")))

    async def _tabs(self, getter: osworld_getters.BareGetter) -> Read:
        try:
            tabs = await chrome_devtools.list_tabs(self._guest)
        except chrome_devtools.DevToolsUnavailable:
            return Value([])  # as OSWorld's getter: Chrome is closed or does not listen
        return Value([{"title": tab["title"], "url": tab["url"]} for tab in tabs])

    async def _screen_size(self, getter: osworld_getters.BareGetter) -> Read:
        width, height = self._client.size
        return Value({"width": width, "height": height})

    async def _window_size(self, getter: osworld_getters.WindowSizeGetter) -> Read:
        reply = await self._client.request("POST", "/window_size", data={"app_class_name": getter.app_class_name})
        return Value(reply.json() if reply.status_code == 200 else None)

    async def _wallpaper(self, getter: osworld_getters.NamedFileGetter) -> Read:
        reply = await self._client.request("POST", "/wallpaper")
        return Files(((_name(getter.dest), reply.content if reply.status_code == 200 else b""),))

    async def _directory_tree(self, getter: osworld_getters.FolderGetter) -> Read:
        reply = await self._client.request("POST", "/list_directory", json={"path": getter.path})
        return Value(reply.json()["directory_tree"] if reply.status_code == 200 else None)

    async def _video_player(self, getter: osworld_getters.BareGetter) -> Read:
        twice, once = _VIDEO_TYPES.split(), _VIDEO_TYPES_ONCE.split()
        result = await self._desktop.run(["/bin/sh", "-c", _PLAYERS, "sh", *twice, *once], timeout_s=60.0)
        lines = (line.partition("\t") for line in result.stdout.decode(errors="replace").splitlines())
        players = {kind: player for kind, _, player in lines if player}
        counts = Counter(players[kind] + "\n" for kind in (*twice, *twice, *once) if kind in players)
        return Value(counts.most_common(1)[0][0] if counts else "unknown")

    async def _vlc_status(self, getter: osworld_getters.NamedFileGetter) -> Read:
        result = await self._desktop.run(["python3", "-I", "-S", "-c", _VLC_STATUS])
        return Files(((_name(getter.dest), result.stdout if result.returncode == 0 else None),))

    async def _bookmarks(self, getter: osworld_getters.BareGetter) -> Read:
        return Value(chrome_preferences.bookmarks(await self._file(f"{_PROFILE}/Bookmarks")))


def unavailable(getter: Getter) -> str | None:
    """Return why a getter cannot be read on any of Deskhand's desktops, or None."""
    kind = getattr(getter, "type", "")
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
    return "unknown type" if isinstance(getter, osworld_getters.OtherGetter) else "reads live web pages"


def _texts(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def _pairs(getter: osworld_getters.FileGetter) -> list[tuple[str, str]]:
    """Return paths with the file names for the metric."""
    return [(path, _name(dest)) for path, dest in zip(_texts(getter.path), _texts(getter.dest), strict=False)]


def _select_files(getter: osworld_getters.FileGetter, files: list[tuple[str, bytes | None]]) -> Files:
    """Return the files that the metric gets: the first, or those in `gives`."""
    indices = sorted(set(getter.gives if getter.gives is not None else [0]))
    chosen = tuple(files[index] for index in indices if 0 <= index < len(files))
    return Files(chosen, single=len(chosen) == 1)


def _name(dest: str | list[str]) -> str:
    """Return a plain file name."""
    return PurePosixPath(_texts(dest)[0]).name or "file"

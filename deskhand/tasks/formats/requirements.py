"""What a task of OSWorld or Windows Agent Arena needs that a machine may lack. Invariant: every need is said with what in the file
shows it, and nothing is guessed away: a task is runnable here only when nothing it needs is missing.

Read from set-up steps, getters, expected addresses, `related_apps`, `proxy`, and of the instruction only the addresses in it and
whether it asks to install something.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from deskhand.tasks.formats import osworld_getters, osworld_setup_steps
from deskhand.tasks.formats.osworld import JsonTask
from deskhand.tasks.formats.waa import WindowsTask

Kind = Literal["file", "web", "account", "packages", "systemd", "gnome", "root", "application", "windows", "unknown"]
Verdict = Literal["runnable here", "needs files", "not here"]
Which = Callable[[str], str | None]

REQUIREMENT_TEXT: dict[Kind, str] = {
    "file": "downloads files",
    "web": "needs the live web",
    "account": "needs an account",
    "packages": "installs software",
    "systemd": "needs systemd",
    "gnome": "needs GNOME",
    "root": "needs root in the guest",
    "application": "needs an application that is not installed",
    "windows": "needs Windows",
    "unknown": "holds a step, getter or metric that is not known",
}
APPLICATIONS: dict[str, tuple[str, ...]] = {
    "chrome": ("google-chrome", "chromium"),
    "gimp": ("gimp",),
    "libreoffice_calc": ("soffice", "libreoffice"),
    "libreoffice_impress": ("soffice", "libreoffice"),
    "libreoffice_writer": ("soffice", "libreoffice"),
    "thunderbird": ("thunderbird",),
    "vlc": ("vlc",),
    "vs_code": ("code",),
    "picard": ("picard",),
    "ubuntu_media_player": ("totem",),
}
"""Programs by the name of an application, any of which is the application."""
_SPELLINGS = {
    "vscode": "vs_code",
    "calc": "libreoffice_calc",
    "writer": "libreoffice_writer",
    "impress": "libreoffice_impress",
    "browser": "chrome",
}
_PROGRAMS = {
    "code": "vs_code",
    "soffice": "libreoffice_writer",
    "libreoffice": "libreoffice_writer",
    "google-chrome": "chrome",
} | {name: name for name in ("gimp", "vlc", "thunderbird")}
_SIGNS: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    ("packages", re.compile(r"\b(?:apt|apt-get|pip|pip3|snap|conda|npm|flatpak)\s+(?:-\S+\s+)*install\b")),
    ("systemd", re.compile(r"\b(?:systemctl|timedatectl|loginctl|journalctl|hostnamectl)\b")),
    ("gnome", re.compile(r"\b(?:gsettings|dconf|nautilus|gnome-[a-z-]+|gio\s+trash)\b")),
    ("root", re.compile(r"\bsudo\b|\{CLIENT_PASSWORD\}|\buseradd\b|\bchpasswd\b")),
    ("web", re.compile(r"\b(?:wget|git\s+clone)\b|\bcurl\s+\S*https?://(?!localhost|127\.)")),
)
_LIVE_GETTERS = frozenset({
    "active_tab_html_parse", "info_from_website", "pdf_from_url", "gotoRecreationPage_and_get_html_content",
    "number_of_search_results", "macys_product_url_parse", "url_path_parse",
})  # fmt: skip
_TAB_GETTERS = frozenset({
    "active_url_from_accessTree", "active_tab_info", "active_tab_url_parse", "open_tabs_info",
    "url_dashPart", "page_info",
})  # fmt: skip
_LOCAL = re.compile(r"(?:localhost|127(?:\.\d+){3}|\[::1\])(?::\d+)?$")
_ADDRESS = re.compile(r"(?:https?://|www\.)[^\s\"'<>]+")
_INSTALL = re.compile(r"\binstall\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Requirement:
    """Something that the task needs, and what says so."""

    kind: Kind
    detail: str

    def __str__(self) -> str:
        return f"{REQUIREMENT_TEXT[self.kind]}: {self.detail}"


def requirements_of(task: JsonTask, which: Which = shutil.which) -> list[Requirement]:
    """What `task` needs and this machine may lack, each once. `which` finds a program's path, or None."""
    found = [Requirement("windows", "a Windows Agent Arena server")] if isinstance(task, WindowsTask) else []
    for keys, step in task.steps():
        found += _of_step(step, ".".join(str(key) for key in keys))
    for _, getter in task.getters():
        found += _of_getter(getter)
    found += _of_expected(task)
    if getattr(task, "proxy", None):
        found.append(Requirement("web", "proxy is true"))
    if not task.infeasible:
        found += _of_instruction(task.instruction)
    if not isinstance(task, WindowsTask):
        found += _of_applications(task, which)
    return list(dict.fromkeys(found))


def verdict(needs: list[Requirement]) -> Verdict:
    """Whether a task with these needs can run on this machine: without more, or once its files are there."""
    kinds = {need.kind for need in needs}
    return "runnable here" if not kinds else "needs files" if kinds == {"file"} else "not here"


def _of_instruction(instruction: str) -> Iterator[Requirement]:
    if _INSTALL.search(instruction):
        yield Requirement("packages", 'the instruction says "install"')
    yield from (Requirement("web", address) for address in _ADDRESS.findall(instruction) if is_remote(address))


def _of_step(step: Any, where: str) -> Iterator[Requirement]:
    if isinstance(step, osworld_setup_steps.DownloadStep):
        yield from (Requirement("file", file.url) for file in step.parameters.files)
    elif isinstance(step, osworld_setup_steps.OpenTabsStep):
        yield from (Requirement("web", url) for url in step.parameters.urls_to_open if is_remote(url))
    elif isinstance(step, osworld_setup_steps.DriveStep):
        yield Requirement("account", f"Google Drive, {step.parameters.settings_file}")
    elif isinstance(step, osworld_setup_steps.LoginStep):
        yield Requirement("account", f"{step.parameters.platform}, {step.parameters.settings_file}")
    elif isinstance(step, osworld_setup_steps.CommandStep | osworld_setup_steps.VerifiedStep):
        yield from _of_command(step.parameters.words)
    elif isinstance(step, osworld_setup_steps.UploadStep):
        yield from (Requirement("file", file.local_path) for file in step.parameters.files)
    elif isinstance(step, osworld_setup_steps.ProxyStep):
        yield Requirement("packages", f"{where} installs a proxy")
    elif isinstance(step, osworld_setup_steps.HistoryStep):
        yield Requirement("file", "a browser's history to start from")
    elif isinstance(step, osworld_setup_steps.OtherStep):
        yield Requirement("unknown", f"{where}: step {step.type!r}")


def _of_command(words: list[str]) -> Iterator[Requirement]:
    text = " ".join(words)
    for kind, sign in _SIGNS:
        if match := sign.search(text):
            yield Requirement(kind, match.group())
    if words and "chrome" in words[0]:
        yield from (Requirement("web", word) for word in words[1:] if is_remote(word))


def _of_getter(getter: Any) -> Iterator[Requirement]:
    kind = getter.type
    if isinstance(getter, osworld_getters.FileGetter) and kind == "cloud_file":
        paths = [getter.path] if isinstance(getter.path, str) else getter.path
        yield from (Requirement("file", path) for path in paths)
    elif isinstance(getter, osworld_getters.DriveGetter):
        yield Requirement("account", f"Google Drive, {getter.settings_file}")
    elif isinstance(getter, osworld_getters.CommandGetter):
        yield from _of_command([getter.command] if isinstance(getter.command, str) else getter.command)
    elif isinstance(getter, osworld_getters.PageGetter) and is_remote(getter.url):
        yield Requirement("web", getter.url)
    elif kind in _LIVE_GETTERS:
        yield Requirement("web", f"getter {kind}")
    elif kind == "vm_terminal_output":
        yield Requirement("gnome", "getter vm_terminal_output reads gnome-terminal")
    elif isinstance(getter, osworld_getters.OtherGetter):
        yield Requirement("unknown", f"getter {kind!r}")


def _of_expected(task: JsonTask) -> Iterator[Requirement]:
    """A page of the web that is to be open at the end."""
    for clause in task.evaluator.clauses:
        if getattr(clause.result, "type", "") in _TAB_GETTERS and isinstance(
            clause.expected, osworld_getters.RuleGetter
        ):
            text = repr(clause.expected.rules)
            yield from (Requirement("web", address) for address in _ADDRESS.findall(text)[:1] if is_remote(address))
            if getattr(clause.result, "goto_prefix", None) and not _ADDRESS.search(text):
                yield Requirement("web", f"getter {clause.result.type} opens {clause.result.goto_prefix}...")  # pyright: ignore


def _of_applications(task: JsonTask, which: Which) -> Iterator[Requirement]:
    names = [re.sub(r"[\s-]+", "_", name.strip().lower()) for name in task.related_apps]
    for _, step in task.steps():
        if isinstance(step, osworld_setup_steps.CommandStep | osworld_setup_steps.VerifiedStep):
            names.append(_PROGRAMS.get(program_of(step.parameters.words), ""))
    for _, getter in task.getters():
        if isinstance(getter, osworld_getters.CommandGetter):
            names.append(_PROGRAMS.get(program_of(getter.command), ""))
    for name in dict.fromkeys(_SPELLINGS.get(name, name) for name in names):
        if (programs := APPLICATIONS.get(name)) is not None and not any(map(which, programs)):
            yield Requirement("application", f"{name} ({' or '.join(programs)})")


def program_of(command: str | list[str]) -> str:
    """The program that a command starts, without its folder and the variables that are set for it."""
    text = command if isinstance(command, str) else " ".join(command)
    first = next((word for word in text.split() if "=" not in word), "")
    return first.rsplit("/", 1)[-1]


def is_remote(address: str) -> bool:
    """Whether an address, perhaps without its scheme, is one of the web."""
    parts = urlsplit(address if "://" in address else f"http://{address}" if address.startswith("www.") else address)
    return parts.scheme in ("http", "https") and not _LOCAL.match(parts.netloc)

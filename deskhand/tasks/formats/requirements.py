"""Requirements of an OSWorld or Windows Agent Arena task that this machine may not meet.

Used by `compatibility` and the suite loader; start with `requirements_of`. Sources: setup steps, getters, metrics,
the programs of their commands, expected URLs, `related_apps`, `proxy`, and of the instruction its URLs, the word
"install" and names of online accounts. Whether GNOME's settings, sound, systemd or root are there is not read but tried
on a desktop (`probes`).
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from deskhand.desktop.applications.catalog import OSWORLD_PROGRAMS
from deskhand.desktop.applications.profile import GUEST_PATH
from deskhand.tasks.formats import osworld_getters, osworld_setup_steps, probes
from deskhand.tasks.formats.located_yaml import format_keys
from deskhand.tasks.formats.osworld import JsonTask
from deskhand.tasks.formats.osworld_metric_options import METRICS, WINDOWS_ONLY_METRICS
from deskhand.tasks.formats.shell_programs import programs_of
from deskhand.tasks.formats.waa import WindowsTask

Kind = Literal[
    "file",
    "web",
    "account",
    "packages",
    "systemd",
    "gnome",
    "root",
    "sound",
    "application",
    "windows",
    "unknown",
    "desktop",
    "library",
    "upload",
    "broken",
]
Verdict = Literal["runnable", "missing files", "unsupported"]
Which = Callable[[str], str | None]

REQUIREMENT_TEXT: dict[Kind, str] = {
    "file": "downloads files",
    "web": "needs the live web",
    "account": "needs an account",
    "packages": "installs software",
    "systemd": "needs systemd",
    "gnome": "needs GNOME",
    "root": "needs root in the guest",
    "sound": "needs a sound server",
    "application": "needs a program that is not installed",
    "windows": "needs Windows",
    "unknown": "has an unknown step, getter or metric",
    "desktop": "sets up or reads the desktop's own files and programs",
    "library": "needs a Python library that is not installed",
    "upload": "uploads files to an application",
    "broken": "has a program that cannot work",
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
"""Programs by application; any of them will do."""
_APPLICATION_ALIASES = {
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
_ALTERNATIVES = {
    "python": ("python3",),
    "socat": ("sh",),
    "gnome-terminal-server": ("xfce4-terminal",),
    **{name: (name, real) for name, real in OSWORLD_PROGRAMS.items()},
}
"""Programs that OSWorld's set-up provides in a guest, with what it needs for that; it does without socat."""
_COMMAND_PATTERNS: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    ("packages", re.compile(r"\b(?:apt|apt-get|pip|pip3|snap|conda|npm|flatpak)\s+(?:-\S+\s+)*install\b")),
    ("account", re.compile(r"\bgoa-[a-z-]+\b|\bonline-accounts\b")),
    ("web", re.compile(r"\b(?:wget|git\s+clone)\b|\bcurl\s+\S*https?://(?!localhost|127\.)")),
)
LIVE_WEB_GETTERS = frozenset({
    "active_tab_html_parse", "info_from_website", "pdf_from_url", "gotoRecreationPage_and_get_html_content",
    "number_of_search_results", "macys_product_url_parse", "url_path_parse",
})  # fmt: skip
_TAB_GETTERS = frozenset({
    "active_url_from_accessTree", "active_tab_info", "active_tab_url_parse", "open_tabs_info",
    "url_dashPart", "page_info",
})  # fmt: skip
_LOCAL = re.compile(r"(?:localhost|127(?:\.\d+){3}|\[::1\])(?::\d+)?$")
_URL = re.compile(r"(?:https?://|www\.)[^\s\"'<>]+")
_INSTALL = re.compile(r"\binstall\b", re.IGNORECASE)
_ACCOUNT = re.compile(r"\b(?<!@)(?:google (?:drive|docs|account)|gmail(?! address)|onedrive|dropbox)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Requirement:
    """One requirement and the part of the file that shows it."""

    kind: Kind
    detail: str

    def __str__(self) -> str:
        return f"{REQUIREMENT_TEXT[self.kind]}: {self.detail}"


def find_in_guest(program: str) -> str | None:
    """Return the path of a program that guests of this machine find, or None."""
    return shutil.which(program, path=f"{GUEST_PATH}:/usr/sbin:/sbin")


def requirements_of(
    task: JsonTask, which: Which = find_in_guest, fails: probes.Failure = probes.on_local_desktop
) -> list[Requirement]:
    """Return the distinct requirements of `task`.

    `which` returns a program's path, or None; `fails` why a probe fails, or None.
    """
    found = [Requirement("windows", "a Windows Agent Arena server")] if isinstance(task, WindowsTask) else []
    for keys, step in task.steps():
        is_unknown = isinstance(step, osworld_setup_steps.OtherStep) or step.type in osworld_setup_steps.WINDOWS_ONLY
        if not is_unknown:
            found += _step_requirements(step, format_keys(keys))
        elif not isinstance(task, WindowsTask):  # there, the benchmark's own server has the steps
            found.append(Requirement("unknown", f"{format_keys(keys)}: step {step.type!r}"))
    for _, getter in task.getters():
        found += _getter_requirements(getter, is_windows=isinstance(task, WindowsTask))
    if not isinstance(task, WindowsTask):
        unknown = [name for name in task.metrics() if name not in METRICS or name in WINDOWS_ONLY_METRICS]
        found += [Requirement("unknown", f"metric {name!r}") for name in unknown]
        found += _program_requirements(task, which)
        failures = ((probe, fails(probe.script)) for probe in probes_of(task))
        found += [Requirement(probe.kind, f"{probe.subject}: {why}") for probe, why in failures if why is not None]
    found += _expected_requirements(task)
    if getattr(task, "proxy", None):
        found.append(Requirement("web", "proxy is true"))
    if not task.infeasible:
        found += _instruction_requirements(task.instruction)
    if not isinstance(task, WindowsTask):
        found += _application_requirements(task, which)
    return list(dict.fromkeys(found))


def verdict(requirements: list[Requirement]) -> Verdict:
    """Return whether a task can run on this machine: now, once its files are cached, or not."""
    kinds = {each.kind for each in requirements}
    return "runnable" if not kinds else "missing files" if kinds == {"file"} else "unsupported"


def _instruction_requirements(instruction: str) -> Iterator[Requirement]:
    if _INSTALL.search(instruction):
        yield Requirement("packages", 'the instruction says "install"')
    if match := _ACCOUNT.search(instruction):
        yield Requirement("account", f"the instruction says {match.group()!r}")
    yield from (Requirement("web", url) for url in _URL.findall(instruction) if is_remote(url))


def _step_requirements(step: Any, where: str) -> Iterator[Requirement]:
    if isinstance(step, osworld_setup_steps.DownloadStep):
        yield from (Requirement("file", file.url) for file in step.parameters.files)
    elif isinstance(step, osworld_setup_steps.OpenTabsStep):
        yield from (Requirement("web", url) for url in step.parameters.urls_to_open if is_remote(url))
    elif isinstance(step, osworld_setup_steps.DriveStep):
        yield Requirement("account", f"Google Drive, {step.parameters.settings_file}")
    elif isinstance(step, osworld_setup_steps.LoginStep):
        yield Requirement("account", f"{step.parameters.platform}, {step.parameters.settings_file}")
    elif isinstance(step, osworld_setup_steps.CommandStep | osworld_setup_steps.VerifiedStep):
        yield from _command_requirements(step.parameters.words)
    elif isinstance(step, osworld_setup_steps.UploadStep):
        yield from (Requirement("file", file.local_path) for file in step.parameters.files)
    elif isinstance(step, osworld_setup_steps.ProxyStep):
        yield Requirement("packages", f"{where} installs a proxy")
    elif isinstance(step, osworld_setup_steps.HistoryStep):
        yield Requirement("file", "a browser's history to start from")


def _command_requirements(words: list[str]) -> Iterator[Requirement]:
    text = " ".join(words)
    for kind, pattern in _COMMAND_PATTERNS:
        if match := pattern.search(text):
            yield Requirement(kind, match.group())
    if words and "chrome" in words[0]:
        yield from (Requirement("web", word) for word in words[1:] if is_remote(word))


def _getter_requirements(getter: Any, *, is_windows: bool) -> Iterator[Requirement]:
    kind = getter.type
    if isinstance(getter, osworld_getters.OtherGetter) or kind in osworld_getters.WINDOWS_ONLY:
        if not is_windows:  # there, the benchmark's own server has the getters
            yield Requirement("unknown", f"getter {kind!r}")
    elif isinstance(getter, osworld_getters.FileGetter) and kind == "cloud_file":
        paths = [getter.path] if isinstance(getter.path, str) else getter.path
        yield from (Requirement("file", path) for path in paths)
    elif isinstance(getter, osworld_getters.DriveGetter):
        yield Requirement("account", f"Google Drive, {getter.settings_file}")
    elif isinstance(getter, osworld_getters.CommandGetter):
        yield from _command_requirements([getter.command] if isinstance(getter.command, str) else getter.command)
    elif isinstance(getter, osworld_getters.PageGetter) and is_remote(getter.url):
        yield Requirement("web", getter.url)
    elif kind in LIVE_WEB_GETTERS:
        yield Requirement("web", f"getter {kind}")


def _expected_requirements(task: JsonTask) -> Iterator[Requirement]:
    """Yield the web pages that must be open at the end."""
    for clause in task.evaluator.clauses:
        if getattr(clause.result, "type", "") in _TAB_GETTERS and isinstance(
            clause.expected, osworld_getters.RuleGetter
        ):
            text = repr(clause.expected.rules)
            yield from (Requirement("web", url) for url in _URL.findall(text)[:1] if is_remote(url))
            if getattr(clause.result, "goto_prefix", None) and not _URL.search(text):
                yield Requirement("web", f"getter {clause.result.type} opens {clause.result.goto_prefix}...")  # pyright: ignore


def _commands(task: JsonTask) -> Iterator[tuple[str | list[str], bool]]:
    """Yield the commands that run in the guest, and whether a shell runs them."""
    for _, step in task.steps():
        if isinstance(step, osworld_setup_steps.CommandStep | osworld_setup_steps.VerifiedStep):
            yield step.parameters.command, bool(step.parameters.shell)
            verification = getattr(step.parameters, "verification", None)
            if verification is not None and verification.command_success:
                yield verification.command_success, True
    for _, getter in task.getters():
        if isinstance(getter, osworld_getters.CommandGetter):
            yield getter.command, bool(getter.shell)


def probes_of(task: JsonTask) -> list[probes.Probe]:
    """Return the distinct probes of the commands of a feasible task."""
    commands = () if task.infeasible or isinstance(task, WindowsTask) else _commands(task)
    return list(dict.fromkeys(probe for command, shell in commands for probe in probes.probes_of(command, shell=shell)))


def _program_requirements(task: JsonTask, which: Which) -> Iterator[Requirement]:
    """Yield the programs of all commands that are not installed, unless another requirement names them."""
    if task.infeasible:
        return
    if any(getattr(getter, "type", "") == "vm_terminal_output" for _, getter in task.getters()):
        yield from _missing(("gnome-terminal",), which)
    for command, shell in _commands(task):
        text = command if isinstance(command, str) else " ".join(command)
        named = {
            word for _, pattern in _COMMAND_PATTERNS for found in pattern.finditer(text) for word in found[0].split()
        }
        named |= {probe.subject.split()[0] for probe in probes.probes_of(command, shell=shell)}
        programs = programs_of(command, shell=shell)
        yield from _missing([each for each in programs if each not in named and each not in _PROGRAMS], which)


def _missing(programs: Iterable[str], which: Which) -> Iterator[Requirement]:
    for program in programs:
        if not any(map(which, _ALTERNATIVES.get(program, (program,)))):
            yield Requirement("application", program)


def _application_requirements(task: JsonTask, which: Which) -> Iterator[Requirement]:
    names = [re.sub(r"[\s-]+", "_", name.strip().lower()) for name in task.related_apps]
    for command, shell in _commands(task):
        names += [_PROGRAMS.get(program, "") for program in programs_of(command, shell=shell)]
    for name in dict.fromkeys(_APPLICATION_ALIASES.get(name, name) for name in names):
        if (programs := APPLICATIONS.get(name)) is not None and not any(map(which, programs)):
            yield Requirement("application", f"{name} ({' or '.join(programs)})")


def is_remote(url: str) -> bool:
    """Return whether a URL, possibly without a scheme, is on the web."""
    parts = urlsplit(f"http://{url}" if url.startswith("www.") else url)
    return parts.scheme in ("http", "https") and not _LOCAL.match(parts.netloc)

"""Requirements of foreign tasks, and the corpus check built on them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from task_files import SHARED, on_windows, task, written

from deskhand.errors import ConfigError
from deskhand.tasks.formats import compatibility, osworld, waa
from deskhand.tasks.formats.requirements import requirements_of, verdict


def everything(program: str) -> str:
    return f"/usr/bin/{program}"


def nothing(program: str) -> None:
    return None


def launch(*command: str) -> dict[str, Any]:
    return {"config": [{"type": "launch", "parameters": {"command": list(command)}}]}


def judged(result: dict[str, Any], expected: Any = None) -> dict[str, Any]:
    return {"evaluator": {"func": "exact_match", "result": result, "expected": expected}}


@pytest.mark.parametrize(
    ("change", "kinds"),
    [
        ({}, set()),
        ({"proxy": True}, {"web"}),
        ({"config": [{"type": "download", "parameters": {"files": [{"url": "https://f.example/a", "path": "a"}]}}]},
         {"file"}),
        ({"config": [{"type": "chrome_open_tabs", "parameters": {"urls_to_open": ["https://www.example"]}}]}, {"web"}),
        ({"config": [{"type": "chrome_open_tabs", "parameters": {"urls_to_open": ["chrome://settings"]}}]}, set()),
        ({"config": [{"type": "chrome_open_tabs", "parameters": {"urls_to_open": ["http://localhost:8080/a"]}}]},
         set()),
        ({"config": [{"type": "login", "parameters": {"settings_file": "s", "platform": "googledrive"}}]}, {"account"}),
        (launch("bash", "-c", "echo {CLIENT_PASSWORD} | sudo -S apt-get -y install sl"), {"packages", "root"}),
        (launch("gsettings", "set", "org.gnome.x", "y", "1"), {"gnome"}),
        (launch("timedatectl", "status"), {"systemd"}),
        (launch("echo", "pip is a program"), set()),
        ({"config": [{"type": "dance", "parameters": {}}]}, {"unknown"}),
        (judged({"type": "cloud_file", "path": "https://f.example/g", "dest": "g"}), {"file"}),
        (judged({"type": "vm_command_line", "command": ["systemctl", "is-active", "x"]}), {"systemd"}),
        (judged({"type": "vm_terminal_output"}), {"gnome"}),
        (judged({"type": "info_from_website", "url": "https://a.example", "infos": []}), {"web"}),
        (judged({"type": "active_tab_info"}, {"type": "rule", "rules": {"url": "https://a.example/x"}}), {"web"}),
        (judged({"type": "active_tab_info"}, {"type": "rule", "rules": {"url": "chrome://settings/"}}), set()),
        ({"instruction": "Install the newest editor."}, {"packages"}),
        ({"instruction": "Play https://media.example/a.m3u8 now."}, {"web"}),
        ({"instruction": "Install the newest editor.", "evaluator": {"func": "infeasible"}}, set()),
    ],
)  # fmt: skip
def test_every_requirement_is_recognized(change: dict[str, Any], kinds: set[str], tmp_path: Path) -> None:
    loaded = osworld.load(written(tmp_path, task(**change)))
    needs = requirements_of(loaded.task, everything)
    assert {need.kind for need in needs} == kinds
    assert verdict(needs) == ("runnable" if not kinds else "missing files" if kinds == {"file"} else "unsupported")


@pytest.mark.parametrize(
    ("change", "program"),
    [
        ({"related_apps": ["LibreOffice Calc"]}, "soffice"),
        ({"related_apps": ["vscode"]}, "code"),
        ({"related_apps": ["os"]} | launch("code", "-g", "a"), "code"),
        ({"related_apps": []} | launch("VLC_VERBOSE=-1 vlc a.mp4"), "vlc"),
        ({"related_apps": []} | launch("/usr/bin/thunderbird"), "thunderbird"),
        ({"related_apps": []} | judged({"type": "vm_command_line", "command": ["code", "--list-extensions"]}), "code"),
    ],
)
def test_an_application_that_is_not_installed_is_named_with_its_program(
    change: dict[str, Any], program: str, tmp_path: Path
) -> None:
    loaded = osworld.load(written(tmp_path, task(**change)))
    (need,) = requirements_of(loaded.task, nothing)
    assert need.kind == "application"
    assert program in need.detail
    assert requirements_of(loaded.task, everything) == []


def test_a_windows_task_requires_only_windows(tmp_path: Path) -> None:
    (need,) = requirements_of(waa.load(written(tmp_path, on_windows(task()))).task, nothing)
    assert need.kind == "windows"


def test_copy_supported_copies_files_unchanged_and_writes_an_index(tmp_path: Path) -> None:
    source = tmp_path / "source"
    here = written(source, task(related_apps=[]), "os/here.json")
    download = {"type": "download", "parameters": {"files": [{"url": "u", "path": "p"}]}}
    files = written(source, task(related_apps=[], config=[download]), "os/files.json")
    written(source, task(proxy=True), "chrome/web.json")
    report = compatibility.check_compatibility("osworld", source, everything)
    assert report.verdicts() == {"runnable": 1, "missing files": 1, "unsupported": 1}
    assert report.kinds() == {"file": 1, "web": 1}
    out = tmp_path / "out"
    assert compatibility.copy_supported(report, out) == 2
    assert (out / "os" / "here.json").read_bytes() == here.read_bytes()
    assert (out / "os" / "files.json").read_bytes() == files.read_bytes()
    assert not (out / "chrome").exists()
    index = json.loads((out / compatibility.INDEX).read_text())
    needs = [{"kind": "web", "detail": "proxy is true"}]
    assert index["chrome/web"] == {"id": "0b5c", "verdict": "unsupported", "requirements": needs}
    with pytest.raises(ConfigError, match="not an empty folder"):
        compatibility.copy_supported(report, out)
    with pytest.raises(ConfigError, match="folder not found"):
        compatibility.check_compatibility("osworld", tmp_path / "absent")


def test_the_areal_task_is_runnable_with_a_browser() -> None:
    path = SHARED / "osworld" / "chrome" / "bb5e4c0d-f964-439c-97b6-bdb9747de3f4.json"
    if not path.is_file():
        pytest.skip(f"the public task files are not beside the checkout ({path})")
    assert requirements_of(osworld.load(path).task, everything) == []
    assert verdict(requirements_of(osworld.load(path).task, nothing)) == "unsupported"

"""Requirements of foreign tasks, and the corpus check built on them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from task_files import SHARED, on_windows, task, written

from deskhand.config.schema import SuiteConfig
from deskhand.errors import ConfigError
from deskhand.recipes.suite import load_suite
from deskhand.tasks.formats import compatibility, osworld, task_files, waa
from deskhand.tasks.formats.requirements import requirements_of, verdict
from deskhand.tasks.formats.shell_programs import programs_of


def everything(program: str) -> str:
    return f"/usr/bin/{program}"


def nothing(program: str) -> str | None:
    """A machine with Debian's essential packages only."""
    return f"/bin/{program}" if program in ("bash", "cat", "sh") else None


def refuses(script: str) -> str | None:
    """A desktop on which every probe fails."""
    return "it does not work"


def works(script: str) -> str | None:
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
        (judged({"type": "vm_command_line", "command": "pactl list sinks | grep x", "shell": True}), {"sound"}),
        (judged({"type": "vm_command_line", "command": ["/bin/bash", "-c", "pulseaudio --start"]}), {"sound"}),
        ({"evaluator": {"func": "dream", "result": {"type": "vm_screen_size"}}}, {"unknown"}),
        (judged({"type": "dream"}), {"unknown"}),
        (judged({"type": "vm_file", "path": 3, "dest": "a"}), {"unknown"}),
        ({"instruction": "Upload the table to my Google Drive."}, {"account"}),
        ({"instruction": "Forward every mail to anonym@gmail.com."}, set()),
        (judged({"type": "vm_terminal_output"}), set()),
        (launch("gio", "trash", "/home/user/a"), {"gnome"}),
        (launch("nautilus", "/home/user"), set()),
        (launch("bash", "-c", "export A=1\ngnome-terminal --maximize"), set()),
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
    needs = requirements_of(loaded.task, everything, refuses)
    assert {need.kind for need in needs} == kinds
    probed = {"systemd", "gnome", "root", "sound"}
    assert {need.kind for need in requirements_of(loaded.task, everything, works)} == kinds - probed
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


@pytest.mark.parametrize(
    ("change", "programs"),
    [
        (judged({"type": "vm_command_line", "command": "jq . a | bc", "shell": True}), ["jq", "bc"]),
        (judged({"type": "vm_command_error", "command": ["wmctrl", "-l"]}), ["wmctrl"]),
        (launch("bash", "-c", 'cd /tmp && X=$(xsel -b) && test -n "$X"'), ["xsel"]),
        (launch("python", "-c", "import os; os.system('exiftool a.png')"), ["python", "exiftool"]),
        (launch("socat", "tcp-listen:9222,fork", "tcp:localhost:1337"), []),
        (launch("./setup.sh"), []),
        (launch("nautilus", "/home/user"), ["nautilus"]),
        (launch("killall", "gnome-terminal-server"), ["killall"]),
        (judged({"type": "vm_terminal_output"}), ["gnome-terminal"]),
    ],
)
def test_programs_of_commands_that_are_not_installed_are_named(
    change: dict[str, Any], programs: list[str], tmp_path: Path
) -> None:
    loaded = osworld.load(written(tmp_path, task(related_apps=[], **change)))
    needs = requirements_of(loaded.task, nothing)
    assert [(need.kind, need.detail) for need in needs] == [("application", program) for program in programs]
    assert verdict(needs) == ("unsupported" if programs else "runnable")
    assert requirements_of(loaded.task, everything) == []


@pytest.mark.parametrize(
    ("command", "programs"),
    [
        (["ls", "-l"], ["ls"]),
        (["/usr/bin/stat", "a"], ["stat"]),
        (["/home/user/eval.sh"], []),
        ("A=1 B=2 vlc --x a.mp4", ["vlc"]),
        ("a; b && c || d | e & f\ng", ["a", "b", "c", "d", "e", "f", "g"]),
        ("if grep -q x a; then echo 1; else od a; fi", ["grep", "od"]),
        ("for f in one two; do stat $f; done", ["stat"]),
        ("while read x; do wc -c; done < list", ["wc"]),
        ("case $x in a) b;; esac; tar c", ["tar"]),
        ('x="$(jq . `find a`)"; [ -z "$x" ] && wc \'a; b\' > out 2>&1', ["find", "jq", "wc"]),
        ("sudo -u root env X=1 timeout 5 strace ls", ["sudo", "env", "timeout", "strace"]),
        ("find . | xargs -n 1 file", ["find", "xargs", "file"]),
        ("bash -c 'exec awk 1'", ["bash", "awk"]),
        ("f() { ls; }; f", ["ls"]),
        ("echo $((1 + 2)) # python", []),
        ("echo 'open", []),
        (["python3", "-c", "import subprocess as s, subprocess; subprocess.run(['jq', '.'])"], ["python3", "jq"]),
        (["python3", "-c", "this is no Python"], ["python3"]),
    ],
)
def test_the_programs_of_a_command_are_read_from_its_text(command: Any, programs: list[str]) -> None:
    assert programs_of(command) == programs


def test_unknown_names_of_a_windows_task_are_the_server_s_to_judge(tmp_path: Path) -> None:
    odd = {"func": "dream", "result": {"type": "sleep_walk", "x": 1}}
    steps = [{"type": "dance", "parameters": {}}, {"type": "sleep", "parameters": {"seconds": "2"}}]
    path = written(tmp_path, on_windows(task(evaluator=odd, config=steps)), "chrome/a-wos.json")
    assert [problem.note for problem in task_files.lint_file(path)] == [True] * 4
    (checked,) = compatibility.check_compatibility("waa", tmp_path).tasks
    assert {need.kind for need in checked.requirements} == {"windows"}
    settings = {"path": tmp_path, "format": "waa", "families": ["chrome/a-wos"]}
    suite = load_suite(SuiteConfig.model_validate(settings), "waa")
    assert suite.train_tasks == ("chrome/a-wos",)


def test_unknown_names_of_an_osworld_task_are_refused_everywhere(tmp_path: Path) -> None:
    for odd in (
        {"func": "dream", "result": {"type": "vm_screen_size"}},
        {"func": "exact_match", "result": {"type": "x"}},
        {"func": "exact_match", "result": {"type": "favorites"}},
        {"func": "check_edge_font_size", "result": {"type": "vm_screen_size"}},
    ):
        path = written(tmp_path, task(related_apps=[], evaluator=odd), "os/a.json")
        assert [problem.note for problem in task_files.lint_file(path)] == [False]
        (checked,) = compatibility.check_compatibility("osworld", tmp_path, everything).tasks
        assert {need.kind for need in checked.requirements} == {"unknown"}
        with pytest.raises(ConfigError, match="unknown"):
            load_suite(SuiteConfig(path=tmp_path, format="osworld", families=("os/a",)), "local")


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

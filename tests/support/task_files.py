"""Task files in the forms of OSWorld and Windows Agent Arena, written for the tests, with every kind of step and
getter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SHARED = Path(__file__).parents[3] / "shared" / "data"
"""Public task files beside the checkout; tests that read them are skipped where they are not."""

STEPS: list[dict[str, Any]] = [
    {
        "type": "download",
        "parameters": {"files": [{"url": "https://files.example/a.xlsx", "path": "/home/user/a.xlsx"}]},
    },
    {"type": "upload_file", "parameters": {"files": [{"local_path": "a.txt", "path": "/home/user/a.txt"}]}},
    {"type": "launch", "parameters": {"command": ["soffice", "--calc"]}},
    {"type": "launch", "parameters": {"command": "vlc --version", "shell": True}},
    {
        "type": "execute",
        "parameters": {"command": ["python", "-c", "pass"], "stdout": "out.txt", "until": {"returncode": 0}},
    },
    {"type": "command", "parameters": {"command": "mkdir /home/user/new", "shell": "true"}},
    {
        "type": "execute_with_verification",
        "parameters": {"command": ["gimp"], "verification": {"window_exists": "GIMP"}, "max_wait_time": 2.5},
    },
    {"type": "open", "parameters": {"path": "/home/user/a.xlsx"}},
    {"type": "change_wallpaper", "parameters": {"path": "/home/user/w.png"}},
    {"type": "sleep", "parameters": {"seconds": 2}},
    {"type": "sleep", "parameters": {"seconds": 2.0}},
    {"type": "activate_window", "parameters": {"window_name": "a.xlsx", "strict": True}},
    {"type": "close_window", "parameters": {"window_name": "a.xlsx", "strict": False, "by_class": True}},
    {"type": "chrome_open_tabs", "parameters": {"urls_to_open": ["http://localhost:8000/"]}},
    {"type": "chrome_close_tabs", "parameters": {"urls_to_close": ["http://localhost:8000/"]}},
    {
        "type": "googledrive",
        "parameters": {"settings_file": "s.yml", "operation": ["delete"], "args": [{"query": "q", "trash": False}]},
    },
    {"type": "login", "parameters": {"settings_file": "s.json", "platform": "googledrive"}},
    {
        "type": "update_browse_history",
        "parameters": {"history": [{"url": "https://a.example/", "title": "A", "visit_time_from_now_in_seconds": 60}]},
    },
    {"type": "proxy", "parameters": {}},
]
WINDOWS_STEPS: list[dict[str, Any]] = [
    {"type": "create_folder", "parameters": {"path": "C:\\Users\\Docker\\new"}},
    {"type": "create_file", "parameters": {"path": "C:\\a.txt", "content": "a"}},
    {"type": "recycle_file", "parameters": {"path": "C:\\a.txt"}},
    {"type": "close_all", "parameters": {}},
    {"type": "clear_task_files"},
]
GETTERS: list[dict[str, Any]] = [
    {"type": "vm_file", "path": "/home/user/a.xlsx", "dest": "a.xlsx"},
    {"type": "cloud_file", "path": ["https://files.example/g.xlsx"], "dest": ["g.xlsx"], "multi": "true", "gives": [0]},
    {"type": "cache_file", "path": "out.txt"},
    {"type": "content_from_vm_file", "path": "/home/user/a.xlsx", "file_type": "xlsx", "file_content": "last_row"},
    {"type": "vm_command_line", "command": ["ls"], "shell": False},
    {"type": "vm_command_error", "command": "ls"},
    {"type": "rule", "rules": {"expected": ["a", 1, 1.0, None]}},
    {"type": "rule_relativeTime", "rules": {"relativeTime": {"from": "tomorrow"}, "expected": {"date": "{DayD}"}}},
    {"type": "time_diff_range", "diff_range_in_minutes": "60"},
    {"type": "history", "dest": "h.sqlite"},
    {"type": "vlc_config", "dest": "vlcrc"},
    {"type": "gimp_config_file", "file_name": "gimprc", "dest": "gimprc"},
    {"type": "vscode_config", "vscode_extension_command": "c", "path": "/home/user/p", "dest": "d"},
    {"type": "audio_in_slide", "ppt_file_path": "/home/user/p.pptx", "slide_index": 0, "dest": "a.mp3"},
    {"type": "vm_window_size", "app_class_name": "vlc"},
    {"type": "list_directory", "path": "/home/user"},
    {"type": "conference_city_in_order", "csv_path": "/home/user/c.csv"},
    {"type": "googledrive_file", "settings_file": "s.yml", "path_list": [["a"]], "dest": ["a"]},
    {"type": "active_tab_info", "goto_prefix": "https://www."},
    {"type": "active_tab_html_parse", "goto_prefix": "https://www.", "category": "xpath", "xpathObject": {"//a": "b"}},
    {"type": "active_tab_url_parse", "goto_prefix": "https://www.", "parse_keys": ["q"], "replace": {"q": "query"}},
    {
        "type": "url_dashPart",
        "goto_prefix": "https://",
        "partIndex": -1,
        "needDeleteId": False,
        "returnType": "json",
        "key": "k",
    },
    {"type": "page_info", "url": "https://a.example/"},
    {"type": "pdf_from_url", "path": "https://a.example/", "dest": "a.pdf"},
    {"type": "info_from_website", "url": "https://a.example/", "infos": [{"action": "inner_text"}], "backups": ["x"]},
    {"type": "gotoRecreationPage_and_get_html_content", "selector": "class", "class": "c", "order": "3"},
    {"type": "accessibility_tree"},
]
WINDOWS_GETTERS: list[dict[str, Any]] = [
    {"type": "check_if_timer_started", "hours": 3, "minutes": 0, "seconds": 0},
    {"type": "system_timezone"},
    {"type": "cookie_data_for_edge", "dest": "Cookies"},
    {"type": "history_for_edge", "dest": "History"},
    {"type": "is_directory_read_only_for_user", "directory": "C:\\a", "user": "Docker"},
    {"type": "is_file_desktop", "filename": "a.txt"},
    {"type": "is_files_moved_downloads", "file_name": "a.txt", "folder_name": "Old"},
    *(
        {"type": kind}
        for kind in (
            "active_hours_of_user_to_not_interrupt_for_windows_updates",
            "default_browser",
            "desktop_background",
            "edge_default_download_folder",
            "edge_font_size",
            "favorites",
            "url_shortcuts_on_desktop",
        )
    ),
]


def task(**changes: Any) -> dict[str, Any]:
    """A small task; `changes` replace its keys."""
    return {
        "id": "0b5c",
        "snapshot": "os",
        "instruction": "Write the sum below the column and save the sheet.",
        "source": "written for this test",
        "config": [],
        "trajectory": "trajectories/",
        "related_apps": ["libreoffice_calc"],
        "evaluator": {
            "postconfig": [{"type": "sleep", "parameters": {"seconds": 0.5}}],
            "func": "exact_match",
            "result": {"type": "vm_command_line", "command": "cat /home/user/a"},
            "expected": {"type": "rule", "rules": {"expected": "3\n"}},
        },
        "proxy": False,
        "fixed_ip": False,
        "possibility_of_env_change": "low",
    } | changes


def full(steps: list[dict[str, Any]], getters: list[dict[str, Any]]) -> dict[str, Any]:
    """A task with all of these steps, and a metric for each of these getters."""
    evaluator = {
        "func": ["check_list"] * len(getters),
        "conj": "or",
        "result": getters,
        "expected": [None, *[{"type": "rule", "rules": []}] * (len(getters) - 1)],
        "options": [{}, *[None] * (len(getters) - 1)],
        "postconfig": steps,
    }
    return task(config=steps, evaluator=evaluator)


def on_windows(value: dict[str, Any]) -> dict[str, Any]:
    """The task as one of Windows Agent Arena's."""
    kept = {key: each for key, each in value.items() if key not in ("proxy", "fixed_ip", "possibility_of_env_change")}
    return kept | {"id": "0b5c-WOS"}


def written(folder: Path, value: Any, name: str = "os/0b5c.json") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")
    return path

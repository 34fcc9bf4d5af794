"""What OSWorld's metrics are to give: (metric, result, expected, options, score); bytes stand for files, None for one
there is not.
"""

from __future__ import annotations

from typing import Any

BAR = {
    "bookmark_bar": {
        "children": [
            {"type": "folder", "name": "Favorites", "children": []},
            {"type": "url", "name": "A", "url": "https://a.example/"},
        ]
    }
}
REGISTRY = (
    '<oor:items xmlns:oor="http://openoffice.org/2001/registry">'
    '<item oor:path="/org.openoffice.Office.Common/Save/Document">'
    '<prop oor:name="AutoSaveTimeIntervall"><value>{}</value></prop></item></oor:items>'
)
CLOCK = "Local time: a\nUniversal time: b\nRTC time: c\nTime zone: Etc/UTC (UTC, {})\n"
GIMP = b'# GIMP gimprc\n\n(undo-levels 100)\n(theme "Dark")\n(color-management (mode none) x)\n'

CASES: list[tuple[str, Any, Any, dict[str, Any], float]] = [
    ("exact_match", "a\n", {"expected": "a\n"}, {}, 1.0),
    ("exact_match", "a", {"expected": "a\n"}, {}, 0.0),
    ("match_in_list", "Bing", {"expected": ["Microsoft Bing", "Bing"]}, {}, 1.0),
    ("match_in_list", "Google", {"expected": ["Microsoft Bing", "Bing"]}, {}, 0.0),
    ("is_in_list", ["a", "b"], {"expected": "b"}, {}, 1.0),
    ("is_in_list", ["a"], {"expected": "b"}, {}, 0.0),
    ("check_include_exclude", "yes, ok", {"include": ["ok"], "exclude": ["no"]}, {}, 1.0),
    ("check_include_exclude", "no, ok", {"include": ["ok"], "exclude": ["no"]}, {}, 0.0),
    ("check_include_exclude", None, {"exclude": ["no"]}, {}, 0.0),
    ("literal_match", "A", "a", {"ignore_case": True}, 1.0),
    ("literal_match", ["A", 1], ["a", "1"], {"type": "list", "ignore_case": True}, 1.0),
    ("literal_match", ["a"], ["a", "b"], {"type": "list"}, 0.0),
    ("literal_match", "a", ["a"], {"type": "list"}, 0.0),
    ("check_list", b"one 1\ntwo 2\n", {"expect": [r"^two \d$"], "unexpect": ["three"]}, {}, 1.0),
    ("check_list", b"one 1\nthree\n", {"expect": ["one"], "unexpect": ["three"]}, {}, 0.0),
    ("check_list", None, {"unexpect": ["three"]}, {}, 0.0),
    ("compare_text_file", b"A  b\n\tc\n", b"a b c", {"ignore_blanks": True, "ignore_case": True}, 1.0),
    ("compare_text_file", b"a b\n", b"a b", {}, 0.0),
    ("compare_text_file", None, b"", {}, 0.0),
    ("file_contains", b"one two", {"expected": ["one", "two"]}, {}, 1.0),
    ("file_contains", b"one", {"expected": ["one", "two"]}, {}, 0.0),
    ("compare_config", b"a: 1\n", {"expected": "a: 1\n"}, {}, 1.0),
    ("compare_config", None, {"expected": ""}, {}, 0.0),
    ("check_json_settings", b'{"a": 1, "b": 2}', {"expected": {"a": 1}}, {}, 1.0),
    ("check_json_settings", b'{"a": "1"}', {"expected": {"a": 1}}, {}, 0.0),
    ("check_json_settings", b"{", {"expected": {}}, {}, 0.0),
    ("check_json_keybindings", b'// mine\n[{"key": "ctrl+j"}]', {"expected": {"key": "ctrl+j"}}, {}, 1.0),
    ("check_json_keybindings", b'[{"key": "ctrl+k"}]', {"expected": {"key": "ctrl+j"}}, {}, 0.0),
    ("check_json_keybindings", b"", {"expected": {}}, {}, 0.0),
    ("is_extension_installed", "a.b\nc.d", {"type": "contain", "expected": "c.d"}, {}, 1.0),
    ("is_extension_installed", "a.b\nc.d", {"type": "not_contain", "expected": "c.d"}, {}, 0.0),
    ("check_config_status", GIMP, {"key": "undo-levels", "value": "100"}, {}, 1.0),
    ("check_config_status", GIMP, {"key": "theme", "value": '"Dark"'}, {}, 1.0),
    ("check_config_status", GIMP, {"key": ["color-management", "(mode"], "value": "x"}, {}, 1.0),
    ("check_config_status", GIMP, {"key": "undo-levels", "value": "10"}, {}, 0.0),
    ("check_config_status", b"#(undo-levels 100)", {"key": "undo-levels", "value": "100"}, {}, 0.0),
    ("check_qt_bgcone", b"[qt]\nqt-bgcone=0\n", {"expected_qt_bgcone": 0}, {}, 1.0),
    ("check_qt_bgcone", b"[qt]\n", {"expected_qt_bgcone": "0"}, {}, 0.0),
    ("check_qt_max_volume", b"#qt-max-volume=125\nqt-max-volume=200\n", {"expected_qt_max_volume": 200}, {}, 1.0),
    ("check_qt_minimal_view", b"qt-minimal-view=1", {"expected_qt_minimal_view": "1"}, {}, 1.0),
    ("check_qt_minimal_view", b"", {"expected_qt_minimal_view": "1"}, {}, 0.0),
    (
        "check_one_instance_when_started_from_file",
        b"one-instance-when-started-from-file=0",
        {"expected_one_instance_when_started_from_file": 0},
        {},
        1.0,
    ),
    ("is_vlc_recordings_folder", b"input-record-path=/home/user/Desktop",
     {"recording_file_path": "/home/user/Desktop"}, {}, 1.0),
    ("is_vlc_recordings_folder", b"#input-record-path=/home/user/Desktop",
     {"recording_file_path": "/home/user/Desktop"}, {}, 0.0),
    ("check_font_size", {"default_font_size": 24}, {"type": "range", "min": 16, "max": 99}, {}, 1.0),
    ("check_font_size", {"default_font_size": 16}, {"type": "range", "min": 16, "max": 99}, {}, 0.0),
    ("check_font_size", {"default_font_size": 16}, {"type": "value", "value": 16}, {}, 1.0),
    ("is_expected_bookmarks", BAR, {"type": "bookmark_bar_folders_names", "names": ["Favorites"]}, {}, 1.0),
    ("is_expected_bookmarks", BAR, {"type": "bookmark_bar_websites_urls", "urls": ["https://b.example/"]}, {}, 0.0),
    ("is_expected_bookmarks", {"bookmark_bar": []}, {"type": "bookmark_bar_websites_urls", "urls": []}, {}, 0.0),
    ("is_in_list", None, {"expected": "b"}, {}, 0.0),
    ("is_expected_bookmarks", None, {"type": "bookmark_bar_websites_urls", "urls": []}, {}, 0.0),
    ("is_expected_url_pattern_match", {"url": "https://a.example/x?q=1"},
     {"expected": [r"a\.example", "q=1"]}, {}, 1.0),
    ("is_expected_url_pattern_match", "https://a.example/", {"expected": [r"a\.example", "q=1"]}, {}, 0.0),
    ("is_expected_url_pattern_match", None, {"expected": []}, {}, 0.0),
    ("check_moved_jpgs", {"children": [{"name": "b"}, {"name": "a"}]}, {"expected": ["a", "b"]}, {}, 1.0),
    ("check_moved_jpgs", {"children": [{"name": "a"}]}, {"expected": ["a", "b"]}, {}, 0.0),
    ("check_gnome_favorite_apps", "['a.desktop', 'b.desktop']\n", {"expected": ["b.desktop", "a.desktop"]}, {}, 1.0),
    ("check_gnome_favorite_apps", "__import__('os').abort()", {"expected": []}, {}, 0.0),
    ("is_utc_0", CLOCK.format("+0000"), None, {}, 1.0),
    ("is_utc_0", CLOCK.format("+0100"), None, {}, 0.0),
    ("is_in_vm_clickboard", "a b c", {"expected": ["a", "c"]}, {}, 1.0),
    ("is_in_vm_clickboard", "a b c", {"expected": "d"}, {}, 0.0),
    ("check_left_panel", '<desktop-frame><document-frame name="Slides View"/></desktop-frame>', None, {}, 1.0),
    ("check_left_panel", "<desktop-frame/>", None, {}, 0.0),
    ("check_auto_saving_time", REGISTRY.format(3).encode(), {"minutes": 3}, {}, 1.0),
    ("check_auto_saving_time", REGISTRY.format(10).encode(), {"minutes": 3}, {}, 0.0),
    ("check_auto_saving_time", b"<!DOCTYPE a [<!ENTITY b 'c'>]>" + REGISTRY.format(3).encode(),
     {"minutes": 3}, {}, 0.0),
]  # fmt: skip

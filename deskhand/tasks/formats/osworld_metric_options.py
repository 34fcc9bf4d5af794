"""Metric functions of OSWorld and Windows Agent Arena, with their options.

Used by `osworld` to find misspelled names. Available implementations are in `tasks.checks.osworld_metrics`. `None`
stands for options that are not checked.
"""

from __future__ import annotations

from typing import Any

INFEASIBLE = "infeasible"
"""Metric of an infeasible task: only declaring it infeasible is right."""

_NO_OPTIONS = """
infeasible compare_epub check_mp3_meta is_expected_active_tab is_expected_active_tab_approximate
is_expected_url_pattern_match is_expected_installed_extensions is_expected_tabs is_expected_bookmarks
is_expected_search_query compare_pdfs is_cookie_deleted is_shortcut_on_desktop check_history_deleted
check_enabled_experiments check_font_size is_added_to_steam_cart check_presenter_console_disable
check_image_stretch_and_center check_slide_numbers_color check_strikethrough check_slide_orientation_Portrait
evaluate_presentation_fill_to_rgb_distance check_left_panel check_transition check_page_number_colors
check_auto_saving_time check_html_background_image compare_result_files check_include_exclude exact_match
match_in_list is_in_list diff_text_file fuzzy_match fuzzy_place_math check_csv check_list run_sqlite3
check_direct_json_object compare_time_in_speedtest_results is_included_all_json_objects is_gold_text_included_in_pdf
file_contains check_line_number compare_terminal_and_txt compare_python_pure_text is_vlc_playing
is_vlc_recordings_folder is_vlc_fullscreen compare_audios check_qt_bgcone check_qt_max_volume check_qt_minimal_view
check_qt_slider_colours check_global_key_play_pause check_one_instance_when_started_from_file compare_image_list
check_file_exists increase_saturation decrease_brightness compare_triangle_positions
check_saturation_increase_and_structure_sim check_file_exists_and_structure_sim check_triangle_position
check_structure_sim check_structure_sim_resized check_contrast_increase_and_structure_sim check_config_status
check_image_size check_palette_and_structure_sim check_textbox_on_leftside check_image_mirror check_green_background
check_sharper check_image_file_size check_gnome_favorite_apps is_utc_0 check_text_enlarged check_moved_jpgs
is_in_vm_clickboard check_thunderbird_prefs check_thunderbird_filter compare_conference_city_in_order
find_default_font contains_page_break compare_init_lines compare_docx_tables compare_docx_images compare_image_text
compare_line_spacing compare_insert_equation compare_font_names compare_subscript_contains has_page_numbers_in_footers
is_first_line_centered compare_contains_image check_highlighted_words evaluate_conversion evaluate_spacing
check_italic_font_size_14 evaluate_alignment get_unique_train_ids check_no_duplicates compare_docx_lines
compare_highlighted_text check_libre_locale check_pdf_pages
"""

_UNCHECKED = """
compare_pdf_images compare_archive check_json_keybindings check_json_settings compare_zip_files compare_config
compare_answer is_extension_installed check_python_file_by_gold_file check_play_and_exit compare_references
evaluate_colored_words_in_tables evaluate_strike_through_last_paragraph compare_unique_train_records
"""

WINDOWS_ONLY_METRICS = frozenset({"check_edge_font_size", "check_qt_video_resize", "is_url_shortcut_on_desktop"})
"""Metrics of Windows Agent Arena that OSWorld does not have."""
METRICS: dict[str, tuple[str, ...] | None] = {
    **dict.fromkeys((*_NO_OPTIONS.split(), *WINDOWS_ONLY_METRICS), ()),
    **dict.fromkeys(_UNCHECKED.split()),
    "check_accessibility_tree": ("osname",),
    "check_brightness_decrease_and_structure_sim": ("threshold",),
    "check_json": ("is_yaml",),
    "check_python_file_by_test_suite": ("test_function_name",),
    "check_structure_sim_with_threshold": ("ssim_threshold", "threshold"),
    "check_tabstops": ("word_number_split_by_tabstop", "index"),
    "check_thunderbird_folder": (
        "file_type", "file_path", "ignore_status", "ignore_keys", "remove_deleted", "remove_duplicate",
    ),
    "compare_csv": ("strict", "ignore_case"),
    "compare_docx_files": (
        "ignore_blanks", "ignore_case", "ignore_order", "content_only", "fuzzy_match", "delete_empty_lines",
    ),
    "compare_docx_files_and_ignore_new_lines": ("ignore_blanks",),
    "compare_htmls": ("ignore_sdnum",),
    "compare_images": ("reference_base_result",),
    "compare_pptx_files": (
        "approximately_tolerance", "enable_debug", "examine_alignment", "examine_background_color", "examine_bullets",
        "examine_color_rgb", "examine_font_bold", "examine_font_italic", "examine_font_name", "examine_font_size",
        "examine_font_underline", "examine_image_size", "examine_indent", "examine_modify_height", "examine_note",
        "examine_number_of_slides", "examine_right_position", "examine_run_count", "examine_shape",
        "examine_shape_for_shift_size", "examine_shape_lenient_height", "examine_strike_through",
        "examine_table_bottom_position", "examine_text", "examine_title_bottom_position", "examine_top_position",
    ),
    "compare_table": ("rules",),
    "compare_text_file": ("ignore_blanks", "ignore_case"),
    "compare_videos": ("max_frames_to_check", "threshold"),
    "literal_match": ("type", "ignore_case"),
}  # fmt: skip

TABLE_RULES = frozenset({
    "sheet_name", "sheet_data", "sheet_print", "sheet_fuzzy", "sparkline", "chart", "style", "freeze", "zoom",
    "data_validation", "row_props", "col_props", "filter", "pivot_table", "check_cell",
})  # fmt: skip
"""Rule types of `compare_table`."""


def option_problems(metric: str, options: dict[str, Any]) -> list[tuple[str, str]]:
    """Return (key, problem) for a metric's options."""
    known = METRICS.get(metric)
    found = (
        [] if known is None else [(key, f"{metric} has no option of this name") for key in options if key not in known]
    )
    if metric == "compare_table" and isinstance(options.get("rules"), list):
        kinds = [rule.get("type") if isinstance(rule, dict) else rule for rule in options["rules"]]
        found += [("rules", f"compare_table has no rule type {kind!r}") for kind in kinds if kind not in TABLE_RULES]
    return found

"""Getters of OSWorld and Windows Agent Arena: what a judge reads, by type.

Names and parameters are those of their functions `get_<type>`, and types are what these functions take. A getter of an
unknown type, or with a value of another type, is kept whole, as `OtherGetter`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import Discriminator, Field, Tag, WrapValidator

from deskhand.tasks.formats.located_yaml import StrictModel, kept_as

Text = str | None
TextOrTexts = str | list[str]
Number = int | str
"""A number, or its text: the functions convert it."""
Truth = Any
"""Anything: only its truth counts, and every text that is not empty is true."""
Objects = dict[str, Any] | list[Any]
"""Keys of interest: a list of texts, or an object whose keys they are."""


class FileGetter(StrictModel):
    """A file of the guest (`vm_file`) or of the web (`cloud_file`).

    With `multi` (a string in some tasks) `path` and `dest` are lists, and `gives` selects the items that the metric
    receives (default: the first).
    """

    type: Literal["vm_file", "cloud_file"]
    path: TextOrTexts
    dest: TextOrTexts
    multi: Truth = None
    gives: list[int] | None = None
    time_format: Text = None
    time_suffix: Truth = None


class StepOutputGetter(StrictModel):
    """Output of an `execute` step, by the name that the step gives it."""

    type: Literal["cache_file"]
    path: str


class ContentGetter(StrictModel):
    type: Literal["content_from_vm_file"]
    path: str
    file_type: Text = None
    file_content: Text = None


class CommandGetter(StrictModel):
    type: Literal["vm_command_line", "vm_command_error"]
    command: str | list[str]
    shell: Truth = None


class RuleGetter(StrictModel):
    type: Literal["rule", "rule_relativeTime"]
    rules: Any


class TimeRangeGetter(StrictModel):
    type: Literal["time_diff_range"]
    diff_range_in_minutes: str | int | float


class NamedFileGetter(StrictModel):
    """A state that is stored as a file of the given name."""

    type: Literal[
        "history", "history_for_edge", "cookie_data", "cookie_data_for_edge", "vlc_config", "vlc_playing_info",
        "vm_wallpaper",
    ]  # fmt: skip
    dest: str
    user_data_dir: Text = None


class GimpConfigGetter(StrictModel):
    type: Literal["gimp_config_file"]
    file_name: str
    dest: str


class CodeConfigGetter(StrictModel):
    type: Literal["vscode_config"]
    vscode_extension_command: str
    path: str
    dest: str


class SlideGetter(StrictModel):
    type: Literal["audio_in_slide", "background_image_in_slide"]
    ppt_file_path: str
    slide_index: Number
    dest: str


class WindowSizeGetter(StrictModel):
    type: Literal["vm_window_size"]
    app_class_name: str


class FolderGetter(StrictModel):
    type: Literal["list_directory"]
    path: str


class CsvCitiesGetter(StrictModel):
    type: Literal["conference_city_in_order"]
    csv_path: str


class DriveGetter(StrictModel):
    type: Literal["googledrive_file"]
    settings_file: Text = None
    path: Any = None
    path_list: Any = None
    query: Any = None
    query_list: Any = None
    dest: Any = None


class AddressGetter(StrictModel):
    """URL or content of the active tab."""

    type: Literal["active_url_from_accessTree", "active_tab_info"]
    goto_prefix: Text = None


class PageContentGetter(StrictModel):
    type: Literal["active_tab_html_parse"]
    goto_prefix: Text = None
    category: str
    class_multiObject: dict[str, Objects] | None = None
    class_multiObject_child: dict[str, dict[str, Any]] | None = None
    class_multiObject_li: dict[str, Objects] | None = None
    class_multiObject_only_child: dict[str, dict[str, Any]] | None = None
    class_multiObject_search_exist: dict[str, Objects] | None = None
    class_singleObject: dict[str, Any] | None = None
    inputObject: dict[str, Any] | None = None
    labelObject: dict[str, Any] | None = None
    url_include_expected: Objects | None = None
    url_include_expected_multichoice: dict[str, Any] | None = None
    xpathObject: dict[str, Any] | None = None


class AddressPartsGetter(StrictModel):
    type: Literal["active_tab_url_parse", "macys_product_url_parse", "url_path_parse"]
    goto_prefix: Text = None
    parse_keys: Objects
    replace: dict[str, Any] | None = None
    split_list: Truth = None


class DashGetter(StrictModel):
    type: Literal["url_dashPart"]
    goto_prefix: Text = None
    partIndex: Number
    needDeleteId: Truth = None
    returnType: str
    key: Text = None


class PageGetter(StrictModel):
    type: Literal["page_info"]
    url: str
    load_state: Text = None


class PdfPageGetter(StrictModel):
    type: Literal["pdf_from_url"]
    path: str
    dest: str


class SiteGetter(StrictModel):
    type: Literal["info_from_website"]
    url: str
    infos: list[dict[str, Any]] | None = None
    backups: Any = None


class RecreationGetter(StrictModel):
    type: Literal["gotoRecreationPage_and_get_html_content"]
    selector: str
    class_: str = Field(alias="class")
    order: Number | None = None


class BareGetter(StrictModel):
    """A state without parameters."""

    type: Literal[
        "accessibility_tree", "active_hours_of_user_to_not_interrupt_for_windows_updates", "bookmarks",
        "chrome_appearance_mode_ui", "chrome_color_scheme", "chrome_font_size", "chrome_language",
        "chrome_saved_address", "data_delete_automacally", "data_delete_automacally_from_edge", "default_browser",
        "default_search_engine", "default_search_engine_from_edge", "default_video_player", "desktop_background",
        "edge_default_download_folder", "edge_font_size", "edge_home_page", "enable_do_not_track",
        "enable_do_not_track_from_edge", "enable_enhanced_safety_browsing",
        "enable_enhanced_safety_browsing_from_edge", "enable_safe_browsing", "enabled_experiments",
        "extensions_installed_from_shop", "favorites", "find_installed_extension_name",
        "find_unpacked_extension_path", "new_startup_page", "night_light_state", "number_of_search_results",
        "open_tabs_info", "profile_name", "profile_name_from_edge", "replay", "shortcuts_on_desktop",
        "storage_sense_run_frequency", "system_notifications", "system_timezone", "url_shortcuts_on_desktop",
        "validate_pwa_installed", "vm_active_window_title", "vm_screen_size", "vm_terminal_output",
    ]  # fmt: skip


class WindowsStateGetter(StrictModel):
    """A state that Windows Agent Arena's server reports, each for one or two tasks."""

    type: Literal[
        "all_png_file_names", "are_all_images_tagged", "are_files_sorted_by_modified_time",
        "check_if_timer_started", "check_if_world_clock_exists", "image_dimension_matches_input",
        "is_all_docx_in_archive", "is_details_view", "is_directory_read_only_for_user", "is_file_desktop",
        "is_file_hidden", "is_file_saved_desktop", "is_files_moved_downloads",
        "is_red_circle_present_on_canvas", "vm_file_exists_in_desktop", "vm_file_exists_in_vm_folder",
        "vm_folder_exists_in_documents", "vm_library_folders", "zipped_folder_in_desktop",
    ]  # fmt: skip
    filename: Text = None
    textcontent: Text = None
    file_name: Text = None
    folder_name: Text = None
    filepath: Text = None
    file_path: Text = None
    folder_path: Text = None
    directory: Text = None
    library_name: Text = None
    password: Text = None
    tag: Text = None
    user: Text = None
    width: str | int | None = None
    height: str | int | None = None
    hours: str | int | None = None
    minutes: str | int | None = None
    seconds: str | int | None = None
    city: Text = None
    country: Text = None


class EmptyGetter(StrictModel):
    """An empty object, which both benchmarks accept as no getter."""


class OtherGetter(StrictModel):
    """A getter of an unknown type, or with values of other types than its function takes."""

    type: str


KnownGetter = (
    FileGetter | StepOutputGetter | ContentGetter | CommandGetter | RuleGetter | TimeRangeGetter | NamedFileGetter
    | GimpConfigGetter | CodeConfigGetter | SlideGetter | WindowSizeGetter | FolderGetter | CsvCitiesGetter
    | DriveGetter | AddressGetter | PageContentGetter | AddressPartsGetter | DashGetter | PageGetter | PdfPageGetter
    | SiteGetter | RecreationGetter | BareGetter | WindowsStateGetter
)  # fmt: skip
MODELS = {kind: model for model in get_args(KnownGetter) for kind in get_args(model.model_fields["type"].annotation)}
"""Models of getters by type."""
TYPES = frozenset(MODELS)
WINDOWS_ONLY = frozenset(get_args(WindowsStateGetter.model_fields["type"].annotation)) | {
    "active_hours_of_user_to_not_interrupt_for_windows_updates", "default_browser", "desktop_background", "favorites",
    "edge_default_download_folder", "edge_font_size", "edge_home_page", "night_light_state",
    "storage_sense_run_frequency", "system_notifications", "system_timezone", "url_shortcuts_on_desktop",
    "validate_pwa_installed", "vm_active_window_title",
    *(name for name in TYPES if name.endswith(("_from_edge", "_for_edge"))),
}  # fmt: skip
"""Types of Windows Agent Arena that OSWorld does not have."""


def _tag(value: Any) -> str | None:
    if value is None:
        return "none"
    if isinstance(value, OtherGetter):
        return "other"
    if isinstance(value, EmptyGetter) or value == {}:
        return "empty"
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return ("known" if kind in TYPES else "other") if isinstance(kind, str) else None


Getter = Annotated[
    Annotated[KnownGetter, Field(discriminator="type"), WrapValidator(kept_as(OtherGetter)), Tag("known")]
    | Annotated[EmptyGetter, Tag("empty")]
    | Annotated[OtherGetter, Tag("other")]
    | Annotated[None, Tag("none")],
    Discriminator(_tag, custom_error_type="getter", custom_error_message="must be an object with a text key type"),
]
"""A getter, or None where a metric of a list has none."""


def _shape(value: Any) -> str:
    return "list" if isinstance(value, list) else "one"


Getters = Annotated[Annotated[Getter, Tag("one")] | Annotated[list[Getter], Tag("list")], Discriminator(_shape)]

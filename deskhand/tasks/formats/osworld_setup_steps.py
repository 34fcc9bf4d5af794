"""Setup steps of OSWorld and Windows Agent Arena, by type.

Names and parameters are those of their methods `_<type>_setup`. A step of an unknown type, or with a value of another
type than its method takes, is kept whole, as `OtherStep`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import Discriminator, Field, Tag, WrapValidator

from deskhand.tasks.formats.located_yaml import StrictModel, kept_as

Number = int | float


class DownloadedFile(StrictModel):
    url: str
    path: str


class UploadedFile(StrictModel):
    local_path: str
    path: str


class Downloads(StrictModel):
    files: list[DownloadedFile]


class Uploads(StrictModel):
    files: list[UploadedFile]


class Until(StrictModel):
    """Repeat the command until one of these is seen."""

    returncode: int | None = None
    stdout: str | None = None
    stderr: str | None = None


class Verification(StrictModel):
    window_exists: str | None = None
    command_success: str | None = None


class Command(StrictModel):
    """A command. `shell` is a string in some tasks; OSWorld treats every non-empty string as true."""

    command: str | list[str]
    shell: bool | str | None = None
    stdout: str | None = None
    stderr: str | None = None
    until: Until | None = None

    @property
    def words(self) -> list[str]:
        """The command as a list; a string is one word."""
        return [self.command] if isinstance(self.command, str) else self.command


class VerifiedCommand(Command):
    verification: Verification | None = None
    max_wait_time: Number | None = None
    check_interval: Number | None = None


class PathOnly(StrictModel):
    path: str


class FileContent(StrictModel):
    path: str
    content: str


class Seconds(StrictModel):
    seconds: Number


class WindowName(StrictModel):
    window_name: str
    strict: bool | None = None
    by_class: bool | None = None


class OpenTabs(StrictModel):
    urls_to_open: list[str]


class CloseTabs(StrictModel):
    urls_to_close: list[str]


class Drive(StrictModel):
    settings_file: str
    operation: list[str]
    args: list[Any]


class Login(StrictModel):
    settings_file: str
    platform: str


class Visit(StrictModel):
    url: str
    title: str
    visit_time_from_now_in_seconds: Number


class Visits(StrictModel):
    history: list[Visit]


class Password(StrictModel):
    client_password: str | None = None


class Nothing(StrictModel):
    pass


class DownloadStep(StrictModel):
    type: Literal["download"]
    parameters: Downloads


class UploadStep(StrictModel):
    type: Literal["upload_file"]
    parameters: Uploads


class CommandStep(StrictModel):
    """`launch` does not wait for the command to end; the others do."""

    type: Literal["launch", "execute", "command"]
    parameters: Command


class VerifiedStep(StrictModel):
    type: Literal["execute_with_verification"]
    parameters: VerifiedCommand


class PathStep(StrictModel):
    type: Literal["open", "change_wallpaper", "create_folder", "recycle_file"]
    parameters: PathOnly


class CreateFileStep(StrictModel):
    type: Literal["create_file"]
    parameters: FileContent


class SleepStep(StrictModel):
    type: Literal["sleep"]
    parameters: Seconds


class WindowStep(StrictModel):
    type: Literal["activate_window", "close_window"]
    parameters: WindowName


class OpenTabsStep(StrictModel):
    type: Literal["chrome_open_tabs"]
    parameters: OpenTabs


class CloseTabsStep(StrictModel):
    type: Literal["chrome_close_tabs"]
    parameters: CloseTabs


class DriveStep(StrictModel):
    type: Literal["googledrive"]
    parameters: Drive


class LoginStep(StrictModel):
    type: Literal["login"]
    parameters: Login


class HistoryStep(StrictModel):
    type: Literal["update_browse_history", "update_browse_history_edge"]
    parameters: Visits


class ProxyStep(StrictModel):
    type: Literal["proxy"]
    parameters: Password


class BareStep(StrictModel):
    type: Literal["close_all", "clear_task_files"]
    parameters: Nothing | None = None


class OtherStep(StrictModel):
    """A step of a type that OSWorld does not implement, such as `tidy_desktop`, or that is unknown; or a step with
    values of other types."""

    type: str
    parameters: Any = None


KnownStep = (
    DownloadStep | UploadStep | CommandStep | VerifiedStep | PathStep | CreateFileStep | SleepStep | WindowStep
    | OpenTabsStep | CloseTabsStep | DriveStep | LoginStep | HistoryStep | ProxyStep | BareStep
)  # fmt: skip
MODELS = {kind: model for model in get_args(KnownStep) for kind in get_args(model.model_fields["type"].annotation)}
"""Models of steps by type."""
WINDOWS_ONLY = frozenset(
    {"create_folder", "create_file", "recycle_file", "close_all", "clear_task_files", "update_browse_history_edge"}
)
"""Types of Windows Agent Arena that OSWorld does not have."""


def _tag(value: Any) -> str | None:
    if isinstance(value, OtherStep):
        return "other"
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return ("known" if kind in MODELS else "other") if isinstance(kind, str) else None


Step = Annotated[
    Annotated[KnownStep, Field(discriminator="type"), WrapValidator(kept_as(OtherStep)), Tag("known")]
    | Annotated[OtherStep, Tag("other")],
    Discriminator(_tag, custom_error_type="step", custom_error_message="must be an object with a text key type"),
]

"""OpenAdapt's checks `python` and `screenshot`: code runs in a process of its own on the guest's files, if the user
says so; a screen is judged by the model that the environment names."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from fake_judge import JudgeServer

from deskhand.desktop.base import Frame
from deskhand.errors import ConfigError, EvaluatorError, InfrastructureError
from deskhand.tasks.checks import vlm_judge
from deskhand.tasks.formats import openadapt
from deskhand.tasks.formats.openadapt_checks import MAX_FILES, python_check
from deskhand.tasks.task import CheckResult

WHERE = Path("night.yaml")


class Guest:
    """A desktop with these files; remembers which were read."""

    def __init__(self, **files: bytes) -> None:
        self.files, self.read = {f"/home/user/{name}": data for name, data in files.items()}, list[str]()

    async def pull(self, path: str) -> bytes:
        self.read.append(path)
        if path not in self.files:
            raise FileNotFoundError(path)
        return self.files[path]


async def value_of(code: str, **files: bytes) -> CheckResult:
    desktop: Any = Guest(**files)
    return await python_check(code, WHERE, allowed=True)(desktop)


@pytest.mark.parametrize(
    ("code", "files", "value"),
    [
        ("return 'dark' in open('/home/user/theme').read()", {"theme": b"dark"}, 1.0),
        ("return 'dark' in open('/home/user/theme').read()", {"theme": b"light"}, 0.0),
        ("'dark' in open('/home/user/theme').read()", {"theme": b"dark"}, 1.0),
        ("import os\nreturn os.path.exists('/home/user/a') and not os.path.exists('/home/user/b')", {"a": b""}, 1.0),
        ("import os\nreturn os.path.isfile('/home/user/a')", {}, 0.0),
        ("import json\nreturn json.load(open('/home/user/a', 'rb'))['on']", {"a": b'{"on": 1}'}, 1.0),
        (
            "import json\nwith open('/home/user/a') as f:\n    found = json.load(f)\nreturn found['on']",
            {"a": b"{"},
            0.0,
        ),
        ("from pathlib import Path\nreturn Path('/home/user/a').read_text() == 'x'", {"a": b"x"}, 1.0),
        ("from pathlib import Path\nreturn Path('/home/user/a').exists()", {"a": b"x"}, 1.0),
        ("from pathlib import Path\nreturn Path('/home/user/a').is_file()", {}, 0.0),
        ("try:\n    return open('/home/user/a').read()\nexcept Exception:\n    return True", {}, 1.0),
        ("def has(word):\n    return word in open('/home/user/a').read()\nhas('x')", {"a": b"x"}, 1.0),
        ("return open('/home/user/a').readlines()[2] == 'c'", {"a": b"a\nb"}, 0.0),
    ],
)
async def test_code_sees_the_files_of_the_guest(code: str, files: dict[str, bytes], value: float) -> None:
    found = await value_of(code, **files)
    assert found.value == value, found.detail
    assert found.untrusted_source


async def test_code_sees_no_file_of_this_machine(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("here")
    assert (await value_of(f"return 'here' in open({str(secret)!r}).read()")).value == 0.0
    assert (await value_of(f"import os\nreturn os.path.exists({str(secret)!r})")).value == 0.0
    await value_of(f"open({str(secret)!r}, 'w').write('gone')\nreturn True")
    assert secret.read_text() == "here"


async def test_code_runs_in_another_process_without_this_ones_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DESKHAND_SERVER_API_KEY", "not-for-tasks")
    assert (await value_of(f"import os\nreturn os.getpid() == {os.getpid()}")).value == 0.0
    assert (await value_of("import os\nreturn 'DESKHAND_SERVER_API_KEY' in os.environ")).value == 0.0


@pytest.mark.parametrize("code", ["return nothing_of_this_name", "import no_such_module\nreturn True"])
async def test_wrong_code_is_an_evaluators_error_and_never_a_zero(code: str) -> None:
    with pytest.raises(EvaluatorError, match="raised"):
        await value_of(code)


async def test_code_may_not_ask_for_ever() -> None:
    with pytest.raises(EvaluatorError, match=f"more than {MAX_FILES} files"):
        await value_of("import os\nn = 0\nwhile True:\n    n += 1\n    os.path.exists(f'/home/user/{n}')\nreturn n")


@pytest.mark.parametrize(
    ("code", "message"),
    [("return (", "no Python"), ("x = 1", "returns nothing"), ("def f():\n    return 1", "nothing")],
)
def test_code_that_cannot_answer_is_refused_when_it_is_loaded(code: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        python_check(code, WHERE, allowed=True)


def file_with(check: dict[str, str], folder: Path) -> Path:
    path = folder / "task.json.yaml"
    path.write_text(json.dumps({"id": "t", "name": "do it", "evaluate": [check]}))
    return path


def test_code_runs_only_if_the_user_says_so(tmp_path: Path) -> None:
    path = file_with({"check": "python", "code": "return True"}, tmp_path)
    with pytest.raises(ConfigError, match=r"suite\.allow_python_checks: true"):
        openadapt.load_task(path, 64, 48)
    assert openadapt.load_task(path, 64, 48, allow_python=True).id == "openadapt/t/0"


class Screen:
    async def observe(self) -> Frame:
        import numpy as np

        return Frame(np.zeros((8, 8, 4), np.uint8), 1, "1", 0.0, "quiet", None, (0, 0))


async def test_a_screen_is_judged_by_the_model_that_the_environment_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = file_with({"check": "screenshot", "description": "the switch is on"}, tmp_path)
    for name in (vlm_judge.BASE_URL_VAR, vlm_judge.MODEL_VAR, vlm_judge.API_KEY_VAR):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match=vlm_judge.BASE_URL_VAR):
        openadapt.load_task(path, 64, 48)
    screen: Any = Screen()
    with JudgeServer() as server:
        monkeypatch.setenv(vlm_judge.BASE_URL_VAR, server.url)
        monkeypatch.setenv(vlm_judge.MODEL_VAR, "judge")
        task = openadapt.load_task(path, 64, 48)
        for reply, value in (("yes", 1.0), ("no", 0.0)):
            server.reply = reply
            assert (await task.check(screen)).value == value
        assert "the switch is on" in json.dumps(server.requests[0])
        assert "data:image/png;base64," in json.dumps(server.requests[0])
        server.reply = "who knows"
        with pytest.raises(EvaluatorError, match="no agreement"):
            await task.check(screen)
    with pytest.raises(InfrastructureError, match="did not answer"):
        await task.check(screen)

"""`DesktopEnv` over an embedded desktop: tasks in OSWorld's form are set up, acted on and judged, and what has no score
raises.

The tasks are written for these tests; the metrics are our own versions, so that nothing has to be installed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from server_client import OWNER_KEY, SCREEN, bridge
from serving import on_a_port

from deskhand.desktop.base import StageableDesktop
from deskhand.desktop.remote.sandbox_desktop import sandbox_desktop
from deskhand.desktop.remote.screenshots import ScreenPolling
from deskhand.desktop.remote.server_desktop import ServerPool
from deskhand.errors import AgentError, ConfigError, EvaluatorError, InfrastructureError
from deskhand.integrations.desktop_env import env as env_module
from deskhand.integrations.desktop_env.env import DesktopEnv
from deskhand.server.sandbox_gateway import SandboxGatewayServer, UpstreamServer
from deskhand.tasks.formats.file_cache import FileCache
from deskhand.tasks.outcome import Errored, Finding, Scored

ADDRESS = "https://files.example/resolve/main/os/1/start.txt"
NOTES = "/home/user/Documents/notes.txt"
RULE = {"type": "rule", "rules": {"expected": "two\n"}}
NOTES_FILE = {"type": "vm_file", "path": NOTES, "dest": "notes.txt"}
SAID = {"type": "vm_command_line", "command": ["cat", NOTES]}


def task(evaluator: dict[str, Any], *config: dict[str, Any], **more: Any) -> dict[str, Any]:
    told = {"id": "0f6a", "instruction": "Write two into the notes."}
    return told | {"config": list(config), "evaluator": evaluator} | more


def step(kind: str, **parameters: Any) -> dict[str, Any]:
    return {"type": kind, "parameters": parameters}


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DesktopEnv]:
    files = FileCache(tmp_path_factory.mktemp("files"))
    files.store(ADDRESS, b"one\n")
    made = DesktopEnv(screen_size=(640, 480), require_a11y_tree=False, files=files)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def our_own_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(env_module, "default_official_evaluators", lambda: None)


TERMINAL = step("launch", command=["xterm", "-geometry", "60x20+0+0", "-e", "sh", "-c", "cd; exec sh"])
DOWNLOAD = step("download", files=[{"url": ADDRESS, "path": NOTES}])
TYPED = task({"func": "exact_match", "result": SAID, "expected": RULE}, DOWNLOAD, TERMINAL)


def test_an_episode_of_pyautogui_goes_from_set_up_to_a_score_of_one(env: DesktopEnv) -> None:
    seen = env.reset(task_config=TYPED)
    assert set(seen) == {"screenshot", "accessibility_tree", "terminal", "instruction"}
    assert seen["screenshot"].startswith(b"\x89PNG")
    assert (seen["instruction"], seen["accessibility_tree"]) == ("Write two into the notes.", None)
    assert env.evaluate() == 0.0, "doing nothing is worth nothing"
    env.step("pyautogui.click(200, 150)", pause=0)
    seen, reward, done, info = env.step(
        "pyautogui.write('echo two > Documents/notes.txt'); pyautogui.press('enter')", pause=0
    )
    assert (reward, done, info) == (0, False, {})
    _, _, done, info = env.step("DONE", pause=0.2)
    assert (done, info) == (True, {"done": True})
    assert env.evaluate() == 1.0
    outcome = env.outcome()
    assert outcome == Scored(1.0, {"0: exact_match": 1.0}, guest_trusted=True)
    assert outcome.findings == (Finding("exact_match", 1.0, "'two\\n'", "{'expected': 'two\\n'}"),)
    verdict = env.verdict()
    assert (verdict.judged_by, verdict.guest_trusted) == ("deskhand", True)


def test_an_episode_of_computer_13_does_the_same_and_a_wrong_action_is_the_agents_error(env: DesktopEnv) -> None:
    env.action_space = "computer_13"
    try:
        env.reset(task_config=TYPED)
        env.step({"action_type": "CLICK", "parameters": {"button": "left", "x": 200, "y": 150}}, pause=0)
        env.step({"action_type": "TYPING", "parameters": {"text": "echo two > Documents/notes.txt\n"}}, pause=0.2)
        with pytest.raises(AgentError):
            env.step({"action_type": "CLICK", "parameters": {"x": 5000, "y": 1}}, pause=0)
        env.step({"action_type": "DONE"}, pause=0)
        assert env.evaluate() == 1.0
    finally:
        env.action_space = "pyautogui"


def test_every_offline_step_is_carried_out_in_order(env: DesktopEnv) -> None:
    evaluator = {
        "func": ["check_list", "compare_text_file", "literal_match"],
        "conj": "and",
        "result": [{"type": "cache_file", "path": "said.txt"}, NOTES_FILE, {"type": "vm_screen_size"}],
        "expected": [
            {"type": "rule", "rules": {"expect": ["^640 320$"], "unexpect": ["error"]}},
            {"type": "cloud_file", "path": ADDRESS, "dest": "gold.txt"},
            {"type": "rule", "rules": {"width": 640, "height": 480}},
        ],
        "options": [{}, {}, {}],
        "postconfig": [step("execute", command=["cat", "size"], stdout="said.txt"), step("sleep", seconds=0.1)],
    }
    env.reset(
        task_config=task(
            evaluator,
            DOWNLOAD,
            step("execute", command="echo {SCREEN_WIDTH} {SCREEN_WIDTH_HALF} > size", shell=True),
            step("command", command=["python", "-c", "import pyautogui; pyautogui.moveTo(9, 9)"]),
            step("execute", command="n=$(cat n 2>/dev/null); echo x$n > n; cat n", shell=True, until={"stdout": "xxx"}),
            step(
                "execute_with_verification",
                command=["touch", "there"],
                verification={"command_success": "test -e there"},
                max_wait_time=5,
                check_interval=0.1,
            ),
            step("launch", command="FOO=1 xterm -T First", shell=True),
            step("launch", command=["xterm", "-T", "Second"]),
            step("launch", command=["socat", "tcp-listen:9222,fork", "tcp:localhost:1337"]),
            step("sleep", seconds=1),
            step("activate_window", window_name="First"),
            step("close_window", window_name="Second", strict=True),
        )
    )
    assert env.controller.get_file("/home/user/n") == b"xxx\n"
    assert env.evaluate() == 1.0
    assert env.verdict().scores == (("check_list", 1.0), ("compare_text_file", 1.0), ("literal_match", 1.0))


@pytest.mark.parametrize(
    ("conj", "second", "value"), [("and", "two\n", 0.0), ("or", "two\n", 1.0), ("or", "three\n", 0.0)]
)
def test_metrics_are_joined_by_and_and_or(env: DesktopEnv, conj: str, second: str, value: float) -> None:
    expected = [RULE, {"type": "rule", "rules": {"expected": second}}]
    results = [{"type": "vm_command_line", "command": ["echo", word]} for word in ("one", "two")]
    evaluator = {"func": ["exact_match", "exact_match"], "conj": conj, "result": results, "expected": expected}
    env.reset(task_config=task(evaluator))
    assert env.evaluate() == value


def test_saying_that_it_cannot_be_done_is_right_of_infeasible_tasks_alone(env: DesktopEnv) -> None:
    env.reset(task_config=task({"func": "infeasible"}))
    assert env.evaluate() == 0.0
    _, _, done, info = env.step("FAIL", pause=0)
    assert (done, info) == (True, {"fail": True})
    assert env.evaluate() == 1.0
    said = {"type": "vm_command_line", "command": "echo two"}
    env.reset(task_config=task({"func": "exact_match", "result": said, "expected": RULE}))
    assert env.evaluate() == 1.0
    env.step("FAIL", pause=0)
    assert env.evaluate() == 0.0


def test_a_missing_file_scores_zero_and_what_cannot_be_scored_is_errored(env: DesktopEnv) -> None:
    gold = {"type": "cloud_file", "path": ADDRESS, "dest": "g"}
    evaluator = {"func": "compare_text_file", "result": NOTES_FILE, "expected": gold}
    env.reset(task_config=task(evaluator))
    assert env.evaluate() == 0.0, "the file that the agent was to write is not there"
    lost = gold | {"path": "https://files.example/lost"}
    why = "https://files.example/lost is not in .*deskhand tasks prefetch"
    for wrong, cause, says in [
        (evaluator | {"expected": lost}, "infrastructure", why),
        (evaluator | {"func": "compare_table"}, "evaluator", "compare_table"),
        (evaluator | {"result": {"type": "cache_file", "path": "never"}}, "evaluator", "no set-up step wrote 'never'"),
        (evaluator | {"result": {"type": "active_tab_info"}}, "evaluator", "live web"),
    ]:
        env.reset(task_config=task(wrong))
        with pytest.raises(EvaluatorError if cause == "evaluator" else InfrastructureError, match=says):
            env.evaluate()
        outcome = env.outcome()
        assert isinstance(outcome, Errored)
        assert outcome.cause == cause


def test_what_the_agent_removed_before_judging_does_not_hide_a_zero(env: DesktopEnv) -> None:
    opened = [step("open", path=NOTES)]
    evaluator = {"func": "exact_match", "result": SAID, "expected": RULE, "postconfig": opened}
    env.reset(task_config=task(evaluator, DOWNLOAD))
    env.controller.run_bash_script("rm -f ~/Documents/notes.txt")
    verdict = env.verdict()
    assert verdict.value == 0.0
    assert "Application/file not found" in verdict.detail


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (step("launch", command=["never-installed"]), r"step 1 of 1 \(launch\).*never-installed"),
        (step("open", path="/home/user/lost.txt"), r"step 1 of 1 \(open\).*not found"),
        (
            step("download", files=[{"url": "https://files.example/lost", "path": "/home/user/a"}]),
            "deskhand tasks prefetch",
        ),
        (
            step("upload_file", files=[{"local_path": "/etc/passwd", "path": "/home/user/a"}]),
            "uploads a local file, but no uploads folder is set",
        ),
        (step("login", settings_file="s.json", platform="googledrive"), "needs a web account"),
        (
            step(
                "execute_with_verification",
                command=["true"],
                verification={"command_success": "false"},
                max_wait_time=0.3,
            ),
            "step 1",
        ),
    ],
    ids=lambda value: value["type"] if isinstance(value, dict) else "",
)
def test_a_set_up_that_fails_begins_no_episode(env: DesktopEnv, wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(InfrastructureError, match=says):
        env.reset(task_config=task({"func": "infeasible"}, wrong))


def test_a_task_that_is_wrong_is_refused_before_anything_starts(env: DesktopEnv) -> None:
    with pytest.raises(ConfigError, match="evaluator"):
        env.reset(task_config={"id": "1", "instruction": "x"})
    with pytest.raises(ConfigError, match="action_space"):
        DesktopEnv(action_space="telepathy")
    with pytest.raises(ConfigError, match="Linux"):
        DesktopEnv(os_type="Windows")


def test_the_controllers_do_what_agents_ask_of_them(env: DesktopEnv, tmp_path: Path) -> None:
    env.reset(task_config=task({"func": "infeasible"}))
    ask = env.controller
    assert (env.vm_platform, env.vm_screen_size) == ("Linux", {"width": 640, "height": 480})
    done = {"status": "success", "output": "640\n", "error": "", "returncode": 0}
    assert ask.execute_python_command("print(pyautogui.size()[0])") == done
    assert ask.run_python_script("print(6 * 7)")["output"] == "42\n"  # pyright: ignore[reportOptionalSubscript]
    assert ask.run_bash_script("echo $((6 * 7)); exit 3")["returncode"] == 3  # pyright: ignore[reportOptionalSubscript]
    assert ask.get_file("/home/user/lost") is None
    assert ask.get_vm_desktop_path() == "/home/user/Desktop"
    env.setup_controller._execute_setup(["touch", "/home/user/Desktop/here"])
    env.setup_controller._command_setup(command="touch /home/user/Desktop/$NAME", shell=True)
    tree = ask.get_vm_directory_tree("/home/user/Desktop")
    assert tree is not None
    assert [child["name"] for child in tree["children"]] == ["here"]
    with pytest.raises(InfrastructureError, match="unknown step 'no_such_step'"):
        env.setup_controller.setup([{"type": "no_such_step"}])
    with pytest.raises(ConfigError, match=r"set-up step 'sleep': .*seconds"):
        env.setup_controller.setup([{"type": "sleep", "parameters": {}}])
    assert not hasattr(env.setup_controller, "_tidy_desktop_setup")
    ask.start_recording()
    env.step("pyautogui.moveTo(100, 100)", pause=0)
    ask.end_recording(str(tmp_path / "film.mp4"))
    assert (tmp_path / "film.mp4").stat().st_size > 500


def test_each_reset_is_a_fresh_home_and_a_closed_environment_says_so(tmp_path: Path) -> None:
    env = DesktopEnv(screen_size=(320, 240), require_a11y_tree=False)
    try:
        env.reset()
        env.controller.run_bash_script("echo x > ~/left")
        assert env.controller.get_file("/home/user/left") == b"x\n"
        env.reset()
        assert env.controller.get_file("/home/user/left") is None
        with pytest.raises(ConfigError, match="no task to evaluate"):
            env.evaluate()
    finally:
        env.close()
        env.close()
    with pytest.raises(InfrastructureError, match="closed"):
        env.controller.get_screenshot()


def test_the_tree_and_the_terminal_come_when_they_are_asked_for() -> None:
    env = DesktopEnv(screen_size=(640, 480), require_terminal=True)
    try:
        seen = env.reset(
            task_config=task({"func": "infeasible"}, step("launch", command=["mousepad"]), step("sleep", seconds=1))
        )
        assert "mousepad" in (seen["accessibility_tree"] or "").lower()
        assert seen["terminal"] is None
    finally:
        env.close()


def played_on(desktop: Callable[[], Awaitable[StageableDesktop]]) -> float:
    """The score of an episode that types a file's text into a terminal."""
    env = DesktopEnv(screen_size=(SCREEN.width, SCREEN.height), require_a11y_tree=False, desktop=desktop)
    try:
        env.reset(task_config=task(TYPED["evaluator"], TERMINAL))
        env.step("pyautogui.click(100, 60)", pause=0)
        env.step("pyautogui.write('echo two > Documents/notes.txt\\n')", pause=0.2)
        return env.evaluate()
    finally:
        env.close()


async def test_it_runs_on_a_desktop_of_a_server_as_on_a_local_one() -> None:
    async with bridge() as running:

        async def leased() -> StageableDesktop:
            pool = ServerPool(f"http://127.0.0.1:{running.port}", OWNER_KEY, spec=SCREEN)
            return (await pool.lease()).desktop

        assert await asyncio.to_thread(played_on, leased) == 1.0


async def test_it_runs_over_a_sandbox_gateway_whose_address_the_environment_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    token = "the-token-of-the-facade"
    async with bridge() as running:
        server = SandboxGatewayServer([UpstreamServer(f"http://127.0.0.1:{running.port}", OWNER_KEY)], {token: 1})
        async with on_a_port(server.app()) as address:  # type: ignore[arg-type]
            monkeypatch.setenv("OSWORLD_SANDBOX_ENDPOINT", address)
            monkeypatch.setenv("OSWORLD_SANDBOX_TOKEN", token)
            looking = ScreenPolling(0.05, 2, 2)
            sandbox = partial(sandbox_desktop, spec=SCREEN, polling=looking)
            assert await asyncio.to_thread(played_on, sandbox) == 1.0
            assert list(running.leases) == [], "the sandbox has ended with the environment"
        await server.close()

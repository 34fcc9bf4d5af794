"""OpenAdapt's check kinds `screenshot` and `python`. Used by `openadapt`.

`screenshot` asks the vision-language model of the check `vlm_judge`. `python` runs the task author's code on the files
of the guest, in a process of its own with limits (`subprocess_call`), never in the guest and never in this process.
That process protects from mistakes, not from malice: the code is trusted as far as the user says so
(`suite.allow_python_checks`).
"""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path
from typing import Any

from deskhand.desktop.base import StageableDesktop
from deskhand.errors import ConfigError, EvaluatorError
from deskhand.tasks.checks.vlm_judge import VlmJudgeCheck, VlmJudgeClient
from deskhand.tasks.document_readers import InvalidDocument
from deskhand.tasks.guest_files import read_file
from deskhand.tasks.openadapt_code import run_code
from deskhand.tasks.outcome import Finding
from deskhand.tasks.subprocess_call import read_in_subprocess
from deskhand.tasks.task import CheckFunction, CheckResult

MAX_FILES = 32
"""Files that the code of one check may read."""
CPU_S = 10.0
MEMORY_MIB = 512
_QUESTION = "Does the screen show what this sentence says? {}"


def screenshot_check(description: str, where: Path) -> CheckFunction:
    """Return a check by the judge that the environment names. Raises `ConfigError` without one."""
    try:
        VlmJudgeClient.from_environment()
        check = VlmJudgeCheck(question=_QUESTION.format(description.strip()))
    except (ConfigError, ValueError) as error:
        raise ConfigError(f"{where}: check screenshot: {' '.join(str(error).split())}") from None
    return check.measure


def python_check(code: str, where: Path, *, allowed: bool) -> CheckFunction:
    """Return a check whose value is whether `code` returns something true. Raises `ConfigError`.

    The code is the body of a function, or one expression. `open`, `os.path.exists`, `os.path.isfile` and `pathlib` in
    it see the guest's files and no others.
    """
    if not allowed:
        raise ConfigError(
            f"{where}: check python runs code of this file on this machine; if you trust it, set "
            "suite.allow_python_checks: true"
        )
    body = _function_body(code, where)

    async def check(desktop: StageableDesktop) -> CheckResult:
        files: dict[str, bytes | None] = {}
        while True:
            present = {path: data for path, data in files.items() if data is not None}
            missing = [path for path in files if path not in present]
            arguments = (list(present), missing, body, where.name)
            try:
                answer = await read_in_subprocess(
                    run_code, list(present.values()), *arguments, cpu_s=CPU_S, memory_mib=MEMORY_MIB
                )
            except InvalidDocument as error:
                return _result(0.0, f"the code failed on the guest's files: {error}")
            if "needs" not in answer:
                return _result(float(answer["holds"]), f"the code returned {answer['value']}")
            if answer["needs"] in files or len(files) == MAX_FILES:
                raise EvaluatorError(f"{where}: check python reads more than {MAX_FILES} files")
            files[answer["needs"]] = await read_file(desktop, answer["needs"])

    return check


def _result(value: float, detail: str) -> CheckResult:
    finding = Finding("python", value, detail, "true")
    return CheckResult(value, f"python: {detail}", untrusted_source=True, findings=(finding,))


def _function_body(code: str, where: Path) -> str:
    """Return the code as the body of a function that returns a value. Raises `ConfigError`."""
    body = textwrap.dedent(code).strip("\n")
    try:
        tree: Any = ast.parse("def check():\n" + textwrap.indent(body, "    "))
    except (SyntaxError, ValueError) as error:
        raise ConfigError(f"{where}: check python: the code is no Python: {error}") from None
    statements = tree.body[0].body
    if not _returns(statements):
        if not isinstance(statements[-1], ast.Expr):
            raise ConfigError(
                f"{where}: check python: the code returns nothing; end it with return or with an expression"
            )
        statements[-1] = ast.Return(statements[-1].value)
    return ast.unparse(ast.fix_missing_locations(ast.Module(statements, [])))


def _returns(statements: list[Any]) -> bool:
    """Return whether a value is returned here; functions inside return to others."""
    pending = list(statements)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Return) and node.value is not None:
            return True
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            pending.extend(ast.iter_child_nodes(node))
    return False

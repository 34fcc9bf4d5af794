"""Programs that a command starts, with their arguments, read from its text.

Used by `requirements`, `probes` and OSWorld's set-up; start with `programs_of` or `simple_commands_of`. Shell text is
split as a POSIX shell does: pipes, lists, groups, substitutions, keywords, assignments and redirections. Python code
given with `-c` contributes the commands that it passes to `os.system` and `subprocess` as literals. Text that cannot be
split has no programs: the caller asks whether they are installed, and a wrong name would exclude a task that can run.
"""

from __future__ import annotations

import ast
import contextlib
import re
import shlex
from collections.abc import Iterator

_SHELLS = frozenset({"sh", "bash", "dash", "zsh"})
_PYTHONS = re.compile(r"python[0-9.]*")
_BUILTINS = frozenset({
    ".", ":", "[", "[[", "]]", "alias", "bg", "break", "builtin", "cd", "command", "continue", "declare", "dirs",
    "disown", "echo", "eval", "exec", "exit", "export", "false", "fc", "fg", "getopts", "hash", "help", "history",
    "jobs", "kill", "let", "local", "logout", "mapfile", "popd", "printf", "pushd", "pwd", "read", "readonly",
    "return", "select", "set", "shift", "shopt", "source", "suspend", "test", "time", "times", "trap", "true",
    "type", "typeset", "ulimit", "umask", "unalias", "unset", "wait",
})  # fmt: skip
_KEYWORDS = frozenset({"if", "then", "elif", "else", "fi", "while", "until", "do", "done", "!", "{", "}", "coproc"})
"""Words after which a command begins, or which end one."""
_PREFIXES = frozenset({"sudo", "env", "nohup", "exec", "command", "nice", "ionice", "setsid", "xargs", "builtin"})
"""Commands whose argument is a command. Their options take no separate value, except those of `_VALUED`."""
_VALUED = {"sudo": ("-u", "-g", "-p", "-h"), "nice": ("-n",), "xargs": ("-n", "-I", "-P", "-d"), "env": ("-u", "-C")}
_COUNTED = {"timeout": 1}
"""Commands with this many arguments before their command."""
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=.*", re.DOTALL)
_NAME = re.compile(r"[A-Za-z0-9_][\w.+-]*")
_SEPARATORS = frozenset(";&|()")
_HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1.*?^\s*\2\s*$", re.DOTALL | re.MULTILINE)
_FUNCTION = re.compile(r"^\s*(?:function\s+)?(\w+)\s*\(\)", re.MULTILINE)
_SYSTEM_FOLDERS = ("/bin/", "/sbin/", "/usr/bin/", "/usr/sbin/")
_RUN = ("run", "call", "check_call", "check_output", "Popen", "getoutput", "getstatusoutput")
_CALLS = frozenset({"os.system", "os.popen", *(f"subprocess.{name}" for name in _RUN)})
_MAX_DEPTH = 5


def programs_of(command: str | list[str], *, shell: bool = False) -> list[str]:
    """Return the names of the programs, in order and without duplicates; a list is argv unless `shell`."""
    return list(dict.fromkeys(argv[0] for argv in simple_commands_of(command, shell=shell)))


def simple_commands_of(command: str | list[str], *, shell: bool = False) -> Iterator[list[str]]:
    """Return the argv of each program, its name without a folder; a list is argv unless `shell`."""
    if isinstance(command, list) and not shell:
        return _of_argv(command, 0)
    return _of_shell(command if isinstance(command, str) else " ".join(command), 0)


def program_of(command: str | list[str]) -> str:
    """Return the first word of a command without its folder and variable assignments: what a launch starts."""
    words = command.split() if isinstance(command, str) else " ".join(command).split()
    return next((word for word in words if "=" not in word), "").rsplit("/", 1)[-1]


def _of_argv(argv: list[str], depth: int) -> Iterator[list[str]]:
    if len(argv) == 1 and depth <= _MAX_DEPTH and any(each.isspace() for each in argv[0]):  # a command line in a list
        yield from _of_shell(argv[0], depth + 1)
        return
    argv = _without_assignments(argv)
    if not argv or depth > _MAX_DEPTH:
        return
    program, rest = argv[0], argv[1:]
    folder, _, name = program.rpartition("/")
    if folder and not f"{folder}/".startswith(_SYSTEM_FOLDERS):
        return  # a file of the task
    if name in _BUILTINS and name not in _PREFIXES | {"eval"}:
        return
    if _NAME.fullmatch(name) and name not in _BUILTINS:
        yield [name, *rest]
    if name in _PREFIXES | _COUNTED.keys():
        yield from _of_argv(_after_options(name, rest), depth + 1)
    elif name == "eval":
        yield from _of_shell(" ".join(rest), depth + 1)
    elif name in _SHELLS or _PYTHONS.fullmatch(name):
        flag = next((at for at, word in enumerate(rest) if re.fullmatch(r"-[a-z]*c", word)), None)
        if flag is not None and flag + 1 < len(rest):
            inside = _of_shell if name in _SHELLS else _of_python
            yield from inside(rest[flag + 1], depth + 1)


def _without_assignments(argv: list[str]) -> list[str]:
    start = next((at for at, word in enumerate(argv) if not _ASSIGNMENT.fullmatch(word)), len(argv))
    return argv[start:]


def _after_options(program: str, words: list[str]) -> list[str]:
    """Return the command that `program` starts."""
    at = 0
    while at < len(words) and words[at].startswith("-"):
        at += 2 if words[at] in _VALUED.get(program, ()) else 1
    return words[at + _COUNTED.get(program, 0) :]


def _of_shell(text: str, depth: int) -> Iterator[list[str]]:
    if depth > _MAX_DEPTH:
        return
    functions = set(_FUNCTION.findall(text))
    text, inner = _without_substitutions(_HEREDOC.sub(" ", text))
    for part in inner:
        yield from _of_shell(part, depth + 1)
    for argv in _simple_commands(text):
        yield from (found for found in _of_argv(argv, depth) if found[0] not in functions)


def _without_substitutions(text: str) -> tuple[str, list[str]]:
    """Return the text with `$(...)` and backquotes outside of single quotes replaced by `_`, and their contents."""
    kept, inner, at, in_double = list[str](), list[str](), 0, False
    while at < len(text):
        character = text[at]
        start = end = -1
        if character == "\\":
            kept.append(text[at : at + 2])
            at += 2
            continue
        if character == '"':
            in_double = not in_double
        elif character == "'" and not in_double:
            end = text.find("'", at + 1)
            if end > 0:
                kept.append(text[at : end + 1])
                at = end + 1
                continue
        elif character == "`":
            end = text.find("`", at + 1)
            start = at + 1
        elif text.startswith("$((", at):
            end = text.find("))", at)
            start = end = end + 1 if end > 0 else -1
        elif text.startswith("$(", at):
            start, end = at + 2, _closing(text, at + 2)
        if end > 0 and character in "`$":
            inner.append(text[start:end])
            kept.append("_")
            at = end + 1
            continue
        kept.append(character)
        at += 1
    return "".join(kept), inner


def _closing(text: str, start: int) -> int:
    """Return the position of the parenthesis that closes the one before `start`, or -1."""
    level, quote = 1, ""
    for at in range(start, len(text)):
        character = text[at]
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in "()":
            level += 1 if character == "(" else -1
            if level == 0:
                return at
    return -1


def _simple_commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each simple command."""
    lexer = shlex.shlex(text.replace("\\\n", " ").replace("\n", " ; "), posix=True, punctuation_chars=";&|()<>")
    lexer.commenters = ""
    try:
        words = list(lexer)
    except ValueError:  # an open quote
        return
    argv: list[str] = []
    skipped_until = skip_next = ""
    for word in words:
        if skipped_until:  # the words of `for name in ...` and `case word in`
            skipped_until = "" if word == skipped_until else skipped_until
        elif skip_next:  # the target of a redirection
            skip_next = ""
        elif set(word) <= set("<>&") and set(word) & set("<>"):
            if argv and argv[-1].isdigit():
                argv.pop()
            skip_next = word
        elif set(word) <= _SEPARATORS or (word in _KEYWORDS and not argv):
            yield argv
            argv = []
        elif not argv and word in ("for", "select"):
            skipped_until = "do"
        elif not argv and word == "case":
            skipped_until = "esac"
        else:
            argv.append(word)
    yield argv


def _of_python(code: str, depth: int) -> Iterator[list[str]]:
    with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError):
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.Call) and node.args and ast.unparse(node.func) in _CALLS:
                with contextlib.suppress(ValueError):
                    command = ast.literal_eval(node.args[0])
                    if isinstance(command, str):
                        yield from _of_shell(command, depth + 1)
                    elif isinstance(command, list | tuple) and all(isinstance(word, str) for word in command):
                        yield from _of_argv(list(command), depth + 1)

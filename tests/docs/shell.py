"""Checks shell commands of the pages without running them: every option must be one that the command knows."""

from __future__ import annotations

import io
import re
import shlex
from contextlib import redirect_stderr

from django.core.management import get_commands, load_command_class

from tests.docs.markdown import ROOT

#: programs that the pages may use and that are not ours to check
ALLOWED = {
    ".", "cat", "cd", "cp", "createdb", "curl", "django-admin", "docker", "echo", "git", "grep", "journalctl", "kill",
    "ls", "mkdir", "mysql", "mysqldump", "pip", "ps", "psql", "python", "sqlite3", "sudo", "systemctl", "timeout",
    "watch", "sleep", "cut", "head", "tail", "ruff", ".venv/bin/python", ".venv/bin/pip", ".ci/run",
}  # fmt: skip
_SPLIT = re.compile(r"\s(?:&&|\|\||\||;)\s")


def commands(text: str) -> list[list[str]]:
    """The words of each command in a shell block."""
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    found = []
    for line in lines:
        for part in _SPLIT.split(f" {line.strip()} ") if not re.search(r"-c ['\"]", line) else [line]:
            words = shlex.split(part, comments=True)
            while words and re.fullmatch(r"[A-Za-z_]+=.*", words[0]):
                words.pop(0)
            if words:
                found.append([word for word in words if word not in ("&",)])
    return found


def check(words: list[str]) -> None:
    """AssertionError for a program that is not allowed, a missing make target or an option nobody knows."""
    program = words[0]
    if program == "sudo":
        return check([word for word in words[1:] if not word.startswith("-") and word != "jobs"])
    if program == "sh":
        assert (ROOT / words[1]).is_file(), f"no script {words[1]}"
        return None
    if program == "make":
        check_make(words[1])
        return None
    assert program in ALLOWED or program.endswith("/python"), f"{program} is not on the list of known programs"
    if "manage.py" in " ".join(words[1:2]):
        check_manage(words[2], words[3:])
    elif words[1:3] == ["-m", "tests.servers"]:
        from tests.servers.__main__ import _parser

        parse(_parser(), words[3:])
    return None


def check_make(target: str) -> None:
    """The Makefile has the target."""
    assert re.search(rf"^{re.escape(target)}:", (ROOT / "Makefile").read_text(), re.MULTILINE), f"no target {target}"


def check_manage(command: str, arguments: list[str]) -> None:
    """The management command exists here and its own parser accepts the arguments."""
    if command in ("startapp", "shell", "createsuperuser", "race_serials", "race_auction"):
        return
    if command not in get_commands():
        assert (ROOT / "demo_project").exists(), f"no command {command}"
        found = [path for path in (ROOT / "demo_project").rglob("commands/*.py") if path.stem == command]
        assert found, f"no command {command}"
        return
    found = load_command_class(get_commands()[command], command)
    parse(found.create_parser("manage.py", command), [word for word in arguments if not re.match(r"\d?>|<", word)])


def parse(parser: object, arguments: list[str]) -> None:
    """AssertionError with the parser's words if it refuses."""
    if "--" in arguments:
        arguments = [*arguments[: arguments.index("--")], "--", "true"]
    words = io.StringIO()
    try:
        with redirect_stderr(words):
            parser.parse_args(arguments)
    except (SystemExit, Exception) as error:
        raise AssertionError(f"{shlex.join(arguments)}: {words.getvalue() or error}") from None

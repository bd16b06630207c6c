"""manage.py jobs completion: what real shells complete with the scripts that it prints."""

import os
import pty
import shlex
import signal
import subprocess

import pytest
from django.db import connection

from jobqueue.cli.completion import words_of
from jobqueue.management.commands.jobs import SUBCOMMANDS
from tests.cli.helpers import printed, read_json, read_until, refused
from tests.patience import patient
from tests.servers.programs import installed


@pytest.fixture(scope="module", autouse=True)
def without_a_session():
    """None that a test before has left open: the command sets a limit for it, and these tests have no database."""
    connection.close()


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    """The script of each shell in a file."""
    folder = tmp_path_factory.mktemp("completion")
    for shell in ("bash", "zsh"):
        (folder / shell).write_text(printed("completion", shell))
    return folder


@pytest.fixture
def completed(scripts):
    """completed(words...): what bash offers for the last of these words."""

    def ask(*words, before=""):
        line = " ".join(map(shlex.quote, words))
        code = (
            f"{before}\nsource {scripts / 'bash'}\nCOMP_WORDS=({line}); COMP_CWORD={len(words) - 1}\n"
            f"{_FUNCTION} {shlex.quote(words[0])} {shlex.quote(words[-1])}\n"
            'printf "%s\\n" "${COMPREPLY[@]}"'
        )
        ran = subprocess.run(
            ["bash", "--norc", "--noprofile", "-c", code], capture_output=True, text=True, check=True, timeout=patient()
        )
        assert not ran.stderr
        return ran.stdout.split()

    return ask


_FUNCTION = "_jobqueue_jobs"


def test_all_subcommands_are_offered(completed):
    assert completed("manage.py", "jobs", "") == list(SUBCOMMANDS)
    assert completed("./manage.py", "jobs", "re") == ["retry", "redrives", "release"]


@pytest.mark.parametrize(
    "start", [("python", "manage.py"), ("python3", "src/manage.py"), ("django-admin",), ("/srv/app/manage.py",)]
)
def test_it_does_not_matter_how_the_command_is_started(completed, start):
    assert completed(*start, "jobs", "wor") == ["workers"]


def test_options_are_those_of_the_subcommand(completed):
    offered = completed("manage.py", "jobs", "workers", "--")
    own = ["--help", "--all", "--jobs", "--limit", "--watch", "--json", "--database"]
    assert offered[: len(own)] == own
    # Behind its own come Django's.
    assert {"--verbosity", "--settings", "--pythonpath", "--traceback", "--no-color"} <= {*offered[len(own) :]}
    assert completed("manage.py", "jobs", "-v", "0", "workers", "--all", "--wa") == ["--watch"]
    assert "--settings" in completed("manage.py", "jobs", "--se")


def test_values_are_offered_where_they_are_known_and_nothing_where_they_are_not(completed):
    waiting, ended = ["ready", "scheduled", "retrying", "held"], ["failed", "canceled", "done"]
    states = [*waiting, "running", "expired", *ended, "processing"]
    assert completed("manage.py", "jobs", "list", "--state", "") == states
    assert completed("manage.py", "jobs", "list", "--state", "fa") == ["failed"]
    # bash takes "--state=fa" for three words.
    assert completed("manage.py", "jobs", "list", "--state", "=", "fa") == ["failed"]
    assert completed("manage.py", "jobs", "list", "--state", "=") == states
    assert completed("manage.py", "jobs", "list", "--queue", "") == []
    assert completed("manage.py", "jobs", "completion", "") == ["bash", "zsh"]
    assert completed("manage.py", "jobs", "completion", "--j") == ["--json"]


def test_other_commands_are_left_to_what_completed_them_before(completed):
    assert completed("manage.py", "migrate", "") == []
    assert completed("python", "jobs", "") == []
    before = "_django_completion() { COMPREPLY=(django); }; complete -F _django_completion -o default manage.py"
    assert completed("manage.py", "migrate", "", before=before) == ["django"]
    assert completed("manage.py", "jobs", "wor", before=before) == ["workers"]


def test_the_script_may_be_read_twice(completed, scripts):
    before = f"_other() {{ COMPREPLY=(other); }}; complete -F _other python\nsource {scripts / 'bash'}"
    assert completed("python", "x.py", "", before=before) == ["other"]


def typed(command, setup, keys, shown):
    """Whether an interactive shell shows `shown` after these keys."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update({"TERM": "dumb", "PS1": "> ", "HISTFILE": "/dev/null"})
        os.execvp(command[0], command)
    try:
        os.write(terminal, f"{setup}; echo rea''dy\n".encode())
        read_until(terminal, "ready\r\n")
        os.write(terminal, keys.encode())
        return read_until(terminal, shown)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)


def test_the_tab_key_of_bash_completes_a_subcommand(scripts):
    typed(["bash", "--norc", "--noprofile", "-i"], f"source {scripts / 'bash'}", "manage.py jobs work\t", "workers ")


@pytest.mark.parametrize(
    ("keys", "shown"),
    [
        ("manage.py jobs work\t", "workers "),
        ("python manage.py jobs workers --wa\t", "--watch"),
        ("manage.py jobs list --state fai\t", "failed"),
        ("manage.py jobs completion z\t", "zsh"),
    ],
)
def test_the_tab_key_of_zsh_completes_words(scripts, keys, shown):
    setup = f"autoload -Uz compinit && compinit -u -D; source {scripts / 'zsh'}"
    typed([installed("zsh"), "-f", "-i"], setup, keys, shown)


def test_zsh_gets_all_words_and_what_they_mean(scripts):
    text = (scripts / "zsh").read_text()
    for name, subcommand in SUBCOMMANDS.items():
        assert f"\n      '{name}:" in text
        assert f"\n    ({name})\n" in text
        assert subcommand.meaning
    assert "--watch=[print it again after each TIME, such as 2s]:TIME: " in text


def test_words_are_read_from_the_parser():
    from argparse import ArgumentParser

    parser = ArgumentParser(add_help=False)
    parser.add_argument("--much", action="append", metavar="FILE", help="100%% [of: it]")
    (much,) = words_of(parser).options
    assert (much.flags, much.help, much.is_file, much.repeats) == (("--much",), "100% [of: it]", True, True)


def test_json_has_the_script():
    found = read_json("completion", "bash")
    assert found["shell"] == "bash"
    assert found["script"] + "\n" == printed("completion", "bash")


@pytest.mark.parametrize("words", [(), ("fish",)])
def test_another_shell_is_refused(capsys, words):
    assert refused(capsys, "jobs", "completion", *words)

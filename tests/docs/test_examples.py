"""Every code block of README.md and docs/ runs, or is checked as far as it can be without a machine of its own."""

import ast
import configparser
import json
import re
import sys

import pytest
import yaml
from django.db import connection
from django.utils.module_loading import import_string

from jobqueue import conf
from jobqueue.models import Job, JobAttempt
from tests.architecture.test_layers import none_of
from tests.docs import scratch, shell
from tests.docs.markdown import LANGUAGES, PAGES, ROOT, VERBS, name, pieces
from tests.settings import VENDOR

TUTORIAL = [page for page in PAGES if "tutorial" in page.parts]
REFERENCE = ROOT / "docs" / "reference"
MISTAKES = ROOT / "docs" / "howto" / "first-mistakes.md"
OWN = [*TUTORIAL, MISTAKES, REFERENCE / "sql.md"]  # pages with a test module of their own
PLAIN = [page for page in PAGES if page not in OWN]
RUNNING = [page for page in PLAIN if any(p.kind in ("python", "sql") for p in pieces(page))]
BLOCKS = [piece for page in PAGES for piece in pieces(page) if piece.kind != "test"]


def test_every_block_names_a_language_and_every_comment_a_verb():
    def offenders():
        for piece in (piece for page in PAGES for piece in pieces(page)):
            if piece.kind == "test" and piece.verb not in VERBS:
                yield f"{piece} has the verb {piece.verb!r}"
            elif piece.kind != "test" and piece.kind not in LANGUAGES:
                yield f"{piece} has the language {piece.kind!r}"

    none_of(offenders())


def for_one_server(page):
    """Whether the page has a block for some databases and not for others."""
    return any(p.kind == "test" and p.verb == "only" for p in pieces(page))


def runs_in_order(page):
    """Run the blocks of a page as a reader would, those for other databases left out."""
    shown = {"Job": Job, "JobAttempt": JobAttempt, "VENDOR": VENDOR, "work": scratch.work}
    module, only, beside = None, None, False
    shown["sql"] = lambda text: scratch.sql(text, shown)
    with scratch.project():
        for piece in pieces(page):
            if piece.kind == "test":
                if piece.verb == "beside":
                    beside = "\n" not in piece.text
                elif piece.verb in ("module", "only"):
                    module = piece.text if piece.verb == "module" else module
                    only = piece if piece.verb == "only" else only
                elif scratch.runs_here(only):
                    hidden(piece, shown)
                    only = None
                else:
                    only = None
                continue
            if scratch.runs_here(only) and not beside:
                if piece.kind == "python":
                    run_python(piece, shown, module)
                elif piece.kind == "sql":
                    scratch.sql(piece.text, shown)
            module, only, beside = None, None, False
        connection.close()


@pytest.mark.parametrize("page", RUNNING, ids=name)
def test_python_and_sql_run_in_order(page, tables):
    runs_in_order(page)


@pytest.mark.skipif(VENDOR == "sqlite", reason="the test above runs all pages")
@pytest.mark.parametrize("page", [page for page in RUNNING if for_one_server(page)], ids=name)
def test_blocks_for_one_server_run_there(page, tables):
    runs_in_order(page)


def hidden(piece, shown):
    if piece.verb == "work":
        shown["endings"] = scratch.work()
    else:
        exec(compile("\n" * piece.line + piece.text, piece.page, "exec"), shown)


def run_python(piece, shown, module):
    space = shown
    if module:
        space = (sys.modules.get(module) or scratch.make_module(module)).__dict__
    before = set(space)
    exec(compile("\n" * piece.line + piece.text, piece.page, "exec"), space)
    if "JOBQUEUE" in set(space) - before:
        assert conf.read(space["JOBQUEUE"])[1] == [], str(piece)
    if "TASKS" in set(space) - before:
        import_string(space["TASKS"]["default"]["BACKEND"])


def refused(kind, check):
    """The blocks of a language that a check does not take, each with what it says."""
    for piece in (block for block in BLOCKS if block.kind == kind):
        try:
            check(piece.text)
        except (Exception, SystemExit) as error:
            yield f"{piece}: {type(error).__name__}: {error}"


def test_python_can_be_parsed():
    none_of(refused("python", ast.parse))


def test_shell_commands_exist_and_know_their_options():
    def check(text):
        for words in shell.commands(text):
            shell.check(words)

    none_of(refused("sh", check))


@pytest.mark.parametrize("piece", [b for b in BLOCKS if b.kind == "ini"], ids=str)
def test_units_can_be_read(piece):
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str
    parser.read_string(piece.text)
    for section in parser.sections():
        for key, value in parser[section].items():
            if key.startswith("Exec") and "manage.py" in value:
                words = value.split()
                shell.check_manage(words[2], words[3:])


@pytest.mark.parametrize("piece", [b for b in BLOCKS if b.kind == "yaml"], ids=str)
def test_yaml_can_be_read(piece):
    found = yaml.safe_load(piece.text)
    # Besides Docker Compose: files of Prometheus and Kubernetes, whose queries tests/metrics/test_rules.py looks at.
    assert {"services", "scrape_configs", "externalRules", "apiVersion"} & set(found)
    for service in found.get("services", {}).values():
        words = service["command"]
        shell.check_manage(words[2], words[3:])


@pytest.mark.parametrize("piece", [b for b in BLOCKS if b.kind == "dockerfile"], ids=str)
def test_dockerfiles_can_be_read(piece):
    for line in re.sub(r"\\\n\s*", "", piece.text).splitlines():
        word, _, rest = line.partition(" ")
        assert word in {"FROM", "RUN", "COPY", "WORKDIR", "USER", "ENV", "CMD", "STOPSIGNAL", "#"} or not line, line
        if word == "CMD":
            words = json.loads(rest)
            shell.check_manage(words[2], words[3:])

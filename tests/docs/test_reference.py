"""The reference pages list exactly what the code has."""

import argparse
import dataclasses
import inspect
import json
import logging
import re
from pathlib import Path

import pytest
from django.core.management import get_commands, load_command_class
from django.dispatch import Signal

import jobqueue
from jobqueue import exceptions, locks, outbox, signals, testing, transactions, transitions
from jobqueue import inspect as inspecting
from jobqueue.cli.arguments import ENV_PREFIX
from jobqueue.conf import OutboxSettings, Settings
from jobqueue.conf.queues import QueueSettings
from jobqueue.db.dialect import ErrorKind
from jobqueue.db.retry import VERBS
from jobqueue.doctor.examination import IDS
from jobqueue.doctor.finding import LEVELS
from jobqueue.explain.explanation import CODES
from jobqueue.lockstats.report import ServerCounts
from jobqueue.log_format import JsonFormatter
from jobqueue.management.commands.jobs import SUBCOMMANDS
from jobqueue.metrics import Figures, families
from jobqueue.models import Job
from jobqueue.testing.injecting import KINDS
from jobqueue.worker.monitor.probe import Probe
from jobqueue.worker.shared.scoreboard import Scoreboard
from tests.docs.markdown import ROOT, code, links, table

REFERENCE = ROOT / "docs" / "reference"
PACKAGE = Path(jobqueue.__file__).parent
DJANGOS = {"help", "version", "verbosity", "settings", "pythonpath", "traceback", "no_color", "force_color"}


def listed(page, heading):
    """The first code span of each row."""
    return [code(row[0])[0] for row in table(REFERENCE / page, heading)]


def listed_options(page, heading):
    """The option, without its value, of each row."""
    return {option.split()[0] for option in listed(page, heading)}


def shown(value):
    if value is dataclasses.MISSING:
        return "{}"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return repr(value).replace("'", '"')


def test_explain_lists_every_code():
    assert list(dict.fromkeys(listed("explain.md", "Codes"))) == list(CODES)


def test_doctor_lists_every_id_with_its_level():
    assert listed("doctor.md", "Ids") == list(IDS)
    for row in table(REFERENCE / "doctor.md", "Ids"):
        assert row[1].startswith(LEVELS[code(row[0])[0]]), row


def test_settings_lists_every_key_with_its_default():
    rows = {code(row[0])[0]: code(row[1])[0] for row in table(REFERENCE / "settings.md", "Keys")}
    assert rows == {field.name.upper(): shown(field.default) for field in dataclasses.fields(Settings)}


def test_settings_lists_every_key_of_a_queue():
    assert listed("settings.md", "Per queue") == [f.name.upper() for f in dataclasses.fields(QueueSettings)]


def test_settings_lists_every_key_of_the_outbox_with_its_default():
    rows = {code(row[0])[0]: code(row[1])[0] for row in table(REFERENCE / "settings.md", "Outbox")}
    assert rows == {field.name.upper(): shown(field.default) for field in dataclasses.fields(OutboxSettings)}


def test_metrics_lists_every_figure_verb_and_error(settings):
    settings.JOBQUEUE = {"OUTBOX": {}}
    probe = Probe.__new__(Probe)
    probe._scoreboard = Scoreboard(1, 1)
    status, text = probe._metrics()
    assert status == 200
    types = re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE)
    assert [(code(row[0])[0], row[1]) for row in table(REFERENCE / "metrics.md", "Figures")] == types
    assert [(code(row[0])[0], row[1]) for row in table(REFERENCE / "metrics.md", "Figures of the queue")] == [
        (f"{family.name}_total" if family.type == "counter" else family.name, family.type)
        for family in families(Figures([], {}, [], ServerCounts(0, 0.0, 0)))
    ]
    verbs = [verb for row in table(REFERENCE / "metrics.md", "Verbs") for verb in code(row[0])]
    assert sorted(verbs) == sorted(VERBS)
    assert listed("metrics.md", "Errors") == list(ErrorKind)


def test_log_lines_lists_every_key_of_a_line_in_json():
    record = logging.makeLogRecord({"exc_text": "x", **dict.fromkeys(JsonFormatter.KEYS, 1)})
    assert listed("log-lines.md", "JSON") == list(json.loads(JsonFormatter().format(record)))


def test_python_lists_every_name_of_outbox_and_idempotency():
    text = (REFERENCE / "outbox.md").read_text()
    for name in [*outbox.__all__, "once", "idempotent_view", "Once"]:
        assert re.search(rf"`@?{name}\b", text), name


def ids_in_code():
    texts = (path.read_text() for path in PACKAGE.rglob("*.py"))
    found = {code for text in texts for code in re.findall(r'(?:jobqueue\.|")([EWI]\d{3})"', text)}
    return {f"jobqueue.{code}" for code in found}


def test_checks_lists_every_id():
    rows = listed("checks.md", "Ids")
    assert len(rows) == len(set(rows))
    assert set(rows) == ids_in_code()


@pytest.mark.parametrize("command", ["runworker", "reap_leases", "relay_outbox"])
def test_commands_lists_every_option(command):
    parser = load_command_class(get_commands()[command], command).create_parser("manage.py", command)
    options = {
        flag for action in parser._actions if action.dest not in DJANGOS for flag in action.option_strings
    }  # fmt: skip
    rows = table(REFERENCE / "commands.md", f"{command} options")
    assert {code(row[0])[0].split()[0] for row in rows} == options


#: sub-commands that have a page of their own, with all of their options
PAGES = {"doctor": "doctor.md", "stats": "stats.md"}
#: jobs.md describes them once, except where they mean something else
COMMON = {"--database", "--json", "--watch"}


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_commands_lists_every_option_of_jobs(name):
    parser = argparse.ArgumentParser()
    SUBCOMMANDS[name].declare(parser)
    options = {flag for action in parser._actions if action.dest not in DJANGOS for flag in action.option_strings}
    if options <= COMMON:
        return
    described = listed_options(PAGES.get(name, "jobs.md"), f"jobs {name} options")
    assert options - COMMON <= described <= options


def test_jobs_lists_the_options_of_all_sub_commands():
    assert listed_options("jobs.md", "jobs") == COMMON


def test_jobs_links_the_schema_of_each_output():
    linked = {target for target in links(REFERENCE / "jobs.md") if target.endswith(".json")}
    assert linked == {f"schemas/{path.name}" for path in (REFERENCE / "schemas").glob("*.json")}


def test_commands_shows_the_defaults_of_runworker():
    parser = load_command_class(get_commands()["runworker"], "runworker").create_parser("manage.py", "runworker")
    defaults = {action.option_strings[0]: action.default for action in parser._actions if action.option_strings}
    for row in table(REFERENCE / "commands.md", "runworker options"):
        flag, cell = code(row[0])[0].split()[0], row[1]
        default = defaults[flag]
        if isinstance(default, int) and not isinstance(default, bool):
            assert code(cell) == [str(default)], flag
        elif isinstance(default, float):
            assert code(cell) == [f"{default:g}s"], flag
    assert ENV_PREFIX in (REFERENCE / "commands.md").read_text()


def exception_names():
    return {
        value.__name__
        for value in vars(exceptions).values()
        if inspect.isclass(value) and issubclass(value, exceptions.JobQueueError)
    }


def test_exceptions_lists_the_whole_tree():
    assert set(listed("exceptions.md", "The tree")) == exception_names()


def test_python_lists_every_signal():
    wanted = {key for key, value in vars(signals).items() if isinstance(value, Signal)}
    assert set(listed("python.md", "Signals")) == wanted


def test_python_lists_every_verb():
    text = (REFERENCE / "python.md").read_text()
    for name in transitions.__all__:
        assert f"`{name}" in text, name


def test_toolkit_lists_every_lock_and_what_it_can_do():
    text = (REFERENCE / "toolkit.md").read_text()
    for name in locks.__all__:
        assert f"`{name}" in text, name
    for kind in (locks.LeaseLock, locks.RedisLock, locks.NamedLock):
        for name in dir(kind):
            assert name.startswith("_") or name in ("kind", "ends") or f"`{name}" in text, name


def test_toolkit_lists_every_name_of_transactions():
    text = (REFERENCE / "toolkit.md").read_text()
    for name in transactions.__all__:
        assert f"`{name}" in text, name


def test_toolkit_lists_every_way_to_look_at_locks():
    text = (REFERENCE / "toolkit.md").read_text()
    for name in [*inspecting.__all__, *(name for name in dir(inspecting.Footprint) if not name.startswith("_"))]:
        assert f"`{name}" in text, name


def test_python_lists_every_public_name():
    assert set(listed("python.md", "Names in jobqueue")) == set(jobqueue.__all__) - {"__version__"}


def test_testing_lists_every_name_and_fixture():
    assert {name.split("(")[0] for name in listed("testing.md", "Names in jobqueue.testing")} == set(testing.__all__)
    fixtures = re.findall(r"@pytest.fixture\ndef (\w+)", (PACKAGE / "testing" / "plugin.py").read_text())
    assert listed("testing.md", "The pytest plugin") == fixtures
    assert set(listed("testing.md", "inject")) == {f'"{kind}"' for kind in KINDS}


def test_sql_lists_every_column():
    assert set(listed("sql.md", "Columns")) == {field.column for field in Job._meta.fields}


def test_states_lists_the_five_states():
    assert [(int(row[0]), code(row[1])[0]) for row in table(REFERENCE / "states.md", "The five values")] == [
        (status.value, status.name) for status in Job.Status
    ]

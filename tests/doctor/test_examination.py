"""Each check stands alone: one that fails is a finding, and the others go on."""

import pytest
from django.db import connection, connections, transaction
from django.test.utils import CaptureQueriesContext

from jobqueue.doctor import Finding, Level, examination, examine
from jobqueue.doctor.examination import CHECKS, run_checks
from jobqueue.doctor.finding import Check, Need
from jobqueue.exceptions import NotSupported
from tests.doctor.helpers import add_worker, ids, the, unreachable
from tests.faults.conftest import kill, session_id
from tests.marks import committed, on_a_wire

pytestmark = pytest.mark.django_db


def refuse(using):
    """A statement that the server refuses."""
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT nothing FROM nowhere")


def crash(using):
    raise RuntimeError("out of luck")


@pytest.fixture
def first(monkeypatch):
    """first(look): this check is the first one."""

    def put(look, need=Need.TABLES):
        monkeypatch.setattr(examination, "CHECKS", [Check("first", "the first one is right", need, look), *CHECKS])

    return put


@pytest.mark.parametrize(("look", "kind"), [(refuse, "Error"), (crash, "RuntimeError: out of luck")])
def test_a_check_that_fails_is_a_warning_and_the_others_go_on(first, look, kind):
    first(look)
    assert sorted(ids()) == ["check_failed", "no_worker"]
    one = the("check_failed")
    assert (one.level, one.evidence["check"]) == (Level.WARNING, "first")
    assert kind in one.evidence["error"]
    assert one.text.startswith("The check has failed, so it is not known whether the first one is right: ")


def test_what_an_account_may_not_ask_is_an_information(first):
    def look(using):
        raise NotSupported("This account may not ask InnoDB. GRANT PROCESS ON *.* TO it.")

    first(look)
    add_worker()
    assert the("not_checked").level is Level.INFO
    assert ids() == ["not_checked"]


def test_a_check_that_fails_leaves_the_callers_transaction_usable(first):
    first(refuse)
    with transaction.atomic():
        add_worker()
        assert ids() == ["check_failed"]
        add_worker("w2")


@committed
@on_a_wire
def test_after_a_lost_connection_the_next_check_opens_another_one(first):
    add_worker()

    def look(using):
        kill(session_id())
        return refuse(using)

    first(look)
    assert ids() == ["check_failed"]


@committed
def test_a_database_that_cannot_be_reached_is_the_finding_and_what_needs_it_is_left_out():
    with unreachable():
        done = run_checks("default")
    found = done.findings
    assert (found[0].id, found[0].level) == ("database_unreachable", Level.ERROR)
    assert found[0].evidence["error"] in found[0].text
    states = {one.check.name: one.findings is None for one in done.checked}
    assert states == {"database": False} | {check.name: check.need is not Need.NOTHING for check in CHECKS}
    assert "database_unreachable" not in ids()


def test_what_a_check_has_found_before_it_fails_is_kept(first):
    def look(using):
        yield Finding(Level.INFO, "lease_short", "It is short.", "Do.", {})
        crash(using)

    first(look)
    add_worker()
    assert ids() == ["check_failed", "lease_short"]


def test_it_reads_only():
    add_worker()
    with CaptureQueriesContext(connection) as captured:
        examine()
    words = [query["sql"].split()[0].upper() for query in captured.captured_queries]
    assert set(words) <= {"SELECT", "WITH", "EXPLAIN", "SHOW", "PRAGMA", "SAVEPOINT", "RELEASE", "DESCRIBE", "SET"}
    assert len([word for word in words if word not in ("SAVEPOINT", "RELEASE")]) < 130


def test_the_checks_have_names_of_their_own():
    assert len({check.name for check in CHECKS}) == len(CHECKS)


def test_a_tasks_module_that_cannot_be_imported_is_an_error(monkeypatch):
    monkeypatch.setattr("jobqueue.doctor.server.registry.discover", lambda: [])
    monkeypatch.setattr("jobqueue.doctor.server.registry.failed_files", lambda: frozenset({"/x/tasks.py"}))
    add_worker()
    assert the("task_module_failed").evidence == {"files": ["/x/tasks.py"]}


def test_the_findings_of_system_checks_have_their_ids_and_can_be_silenced(settings):
    add_worker()
    settings.TASKS = {"default": {"BACKEND": "jobqueue.backends.JobQueueBackend", "OPTIONS": {"DATABASES": "x"}}}
    assert ids() == ["jobqueue.E021"]
    settings.SILENCED_SYSTEM_CHECKS = ["jobqueue.E021"]
    assert ids() == []

"""A result that the server does not take as a packet ends its own job, and keeps no other end from being written."""

import logging
from types import SimpleNamespace

import pytest
from django.db import connection, connections
from django.test import override_settings

from jobqueue import checks
from jobqueue.base.payload import encode
from jobqueue.models import Job
from jobqueue.transitions import claim
from jobqueue.transitions.acking import encode_result
from jobqueue.worker.child.outcomes import settle
from jobqueue.worker.monitor.preflight import preflight
from jobqueue.worker.run.attempt import Ending, Outcome
from jobqueue.worker.shared.queue_choice import Selection
from jobqueue.worker.shared.worker_options import Options
from tests.factories import job, make_jobs, state
from tests.marks import committed, finding
from tests.settings import VENDOR

pytestmark = [
    committed,
    pytest.mark.skipif(VENDOR not in ("mysql", "mariadb"), reason="others take statements of any length"),
]
MEGABYTE = 1024 * 1024


@pytest.fixture
def small_packets(db):
    """New sessions take packets of a megabyte."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT @@GLOBAL.max_allowed_packet")
        (before,) = cursor.fetchone()
        cursor.execute("SET GLOBAL max_allowed_packet = %s", [MEGABYTE])
    connections.close_all()
    yield
    connections.close_all()
    with connection.cursor() as cursor:
        cursor.execute("SET GLOBAL max_allowed_packet = %s", [before])
    connections.close_all()


def outcomes_of(*results):
    make_jobs(len(results))
    leases = sorted(claim("q", len(results), worker="w"), key=lambda lease: lease.job_id)
    return [
        Outcome(lease, Ending.OK, 0.0, result=encode_result(result))
        for lease, result in zip(leases, results, strict=True)
    ]


@finding("A12")
@override_settings(JOBQUEUE={"MAX_RESULT_BYTES": 40 * MEGABYTE})
@pytest.mark.parametrize("megabytes", [3, 12, 30])
def test_it_ends_failed_and_the_others_done(small_packets, megabytes):
    outcomes = outcomes_of("short", "x" * megabytes * MEGABYTE, "short too", '"' * 600_000)
    slot = SimpleNamespace(finished=0, failed=0, lost=0)
    assert settle(outcomes, slot) == []
    ids = [outcome.lease.job_id for outcome in outcomes]
    assert [state(job_id) for job_id in ids] == ["DONE", "FAILED", "DONE", "FAILED"]
    assert {(job(job_id).cause, job(job_id).attempts) for job_id in (ids[1], ids[3])} == {("format", 1)}
    assert job(ids[2]).result == "short too"
    assert (slot.finished, slot.failed, slot.lost) == (4, 2, 0)


@finding("A12")
@override_settings(JOBQUEUE={"MAX_RESULT_BYTES": 40 * MEGABYTE})
def test_the_check_compares_the_settings_with_the_server():
    found = checks.check_database(databases=["default"])
    with connection.cursor() as cursor:
        cursor.execute("SELECT @@max_allowed_packet")
        (limit,) = cursor.fetchone()
    assert limit < 84 * MEGABYTE
    (message,) = [message for message in found if "MAX_RESULT_BYTES" in message.msg]
    assert (message.id, str(84 * MEGABYTE) in message.hint) == ("jobqueue.W027", True)


@finding("A12")
def test_a_worker_says_so_when_it_starts(small_packets, caplog):
    with caplog.at_level(logging.WARNING):
        assert preflight(Options(selection=Selection(), database="default")) == 0
    assert "max_allowed_packet is 1048576" in caplog.text


def test_the_defaults_of_both_sides_fit():
    assert "jobqueue.W027" not in [message.id for message in checks.check_database(databases=["default"])]
    assert len(encode("x", max_bytes=5, setting="MAX_RESULT_BYTES", what="result")) == 3
    assert not Job.objects.exists()

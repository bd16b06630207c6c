"""A worker warns of jobs in queues that nobody serves."""

import logging

from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobqueue import enqueue, enqueue_many
from jobqueue.maintenance import worker_rows
from jobqueue.transitions import ack, claim
from jobqueue.worker.monitor import preflight as checks
from jobqueue.worker.monitor.preflight import preflight
from jobqueue.worker.shared.queue_choice import parse
from jobqueue.worker.shared.worker_options import Options
from tests.marks import committed

pytestmark = committed


def options(*words):
    return Options(selection=parse(words), database="default")


def warned(caplog, *words):
    """What a worker with these words on its command line warns of."""
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        checks.warn_unserved(options(*words))
    return [record.getMessage() for record in caplog.records]


def other_worker(queues):
    worker_rows.register(
        f"vm:1:{queues}"[:100], supervisor_pid=1, boot_id="b", queues=queues, concurrency=4, using="default"
    )


def test_a_worker_with_a_typing_error_in_its_queues_names_the_jobs_that_wait(caplog):
    enqueue_many("mail", [1, 2, 3])
    enqueue("reports", 1)
    (text,) = warned(caplog, "mial")
    assert text == (
        "jobs wait in queues that no running worker serves: mail (3), reports (1). "
        "This worker serves queue mial: did you mean mail?"
    )


def test_without_a_similar_name_it_says_what_to_do(caplog):
    enqueue("reports", 1)
    (text,) = warned(caplog, "-reports")
    assert text.endswith("serves all queues but reports; name them in --queues here or start a worker for them.")


def test_nothing_is_said_of_queues_that_this_or_another_running_worker_serves(caplog):
    enqueue("mail", 1)
    enqueue("reports", 1)
    assert not warned(caplog)
    assert not warned(caplog, "mail,reports")
    other_worker("reports, web:5")
    assert not warned(caplog, "mail")
    worker_rows.retire("vm:1:reports, web:5", "stopped", using="default")
    assert warned(caplog, "mail")
    other_worker("*, -mail")
    assert not warned(caplog, "mail")


def test_a_worker_whose_list_of_queues_was_too_long_to_be_stored_may_serve_any_queue(caplog):
    names = [f"queue-{number:03d}-of-many" for number in range(100)]
    enqueue(names[50], 1)
    assert warned(caplog, "mail")
    other_worker(", ".join(names))
    assert not warned(caplog, "mail")
    # A list that fits is compared, however long it is.
    worker_rows.retire(f"vm:1:{', '.join(names)}"[:100], "stopped", using="default")
    other_worker(", ".join(reversed(names[:40])))
    assert warned(caplog, "mail")


def test_jobs_that_have_ended_or_are_held_by_a_worker_do_not_wait(caplog):
    enqueue_many("mail", [1, 2])
    one, _ = claim("mail", 2, worker="w")
    ack(one)
    assert not warned(caplog, "web")


def test_only_a_bounded_number_of_jobs_is_counted_in_a_few_queues(caplog, monkeypatch):
    monkeypatch.setattr(checks, "COUNT_MAX", 3)
    for number in range(8):
        enqueue_many(f"q{number}", list(range(number + 1)))
    with CaptureQueriesContext(connection) as seen:
        (text,) = warned(caplog, "mail")
    assert "q0 (1), q1 (2), q2 (3), q3 (3+), q4 (3+) and 3 other queues." in text
    assert len(seen) == 2 + checks.NAMES_MAX
    assert sum("LIMIT 4" in query["sql"] for query in seen) == checks.NAMES_MAX


def test_a_worker_looks_before_it_starts(caplog):
    enqueue("mail", 1)
    with caplog.at_level(logging.INFO):
        assert preflight(options("mial")) == 0
    assert "did you mean mail?" in caplog.text

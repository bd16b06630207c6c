"""What a worker and a relay look up for their hints is found by seeks, however long the tables are."""

from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from jobqueue.models import OutboxEvent
from jobqueue.outbox import publish, statements
from jobqueue.outbox.statements import NO_DESTINATION
from jobqueue.worker.monitor import preflight
from jobqueue.worker.shared.queue_choice import parse
from jobqueue.worker.shared.worker_options import Options
from tests.marks import committed
from tests.plans.test_plans import plan
from tests.settings import VENDOR

pytestmark = committed


def test_jobs_in_queues_that_nobody_serves_are_counted_by_seeks(run):
    with CaptureQueriesContext(connection) as seen:
        preflight.warn_unserved(Options(selection=parse(["mial"]), database="default"))
    counts = [query["sql"] for query in seen if "LIMIT 1001" in query["sql"]]
    assert len(counts) == 2
    for sql in counts:
        found = plan(run, sql)
        assert "ix_pick" in found, found
        assert "seq scan" not in found, found
        assert "sort" not in found, found


def test_events_without_a_route_are_found_by_the_lanes(transactional_db):
    with transaction.atomic():
        for number in range(3000):
            publish("t", number)
        OutboxEvent.objects.update(lane=None, due_at=None)
        waiting = [publish("t", number, f"k{number}") for number in range(20)]
    OutboxEvent.objects.filter(pk=waiting[0]).update(last_error=NO_DESTINATION)

    def run(sql):
        with connection.cursor() as cursor:
            cursor.execute(sql)
            return cursor.fetchall() if cursor.description else []

    run({"sqlite": "ANALYZE", "postgres": "ANALYZE job_outbox"}.get(VENDOR, "ANALYZE TABLE job_outbox"))
    with CaptureQueriesContext(connection) as seen:
        found = statements.head_events(using="default", last_error_begins=NO_DESTINATION)
    assert [event_id for event_id, _, _ in found] == waiting[:1]
    text = plan(run, seen.captured_queries[-1]["sql"])
    assert "ix_outbox_lane" in text, text
    assert "seq scan on job_outbox" not in text, text

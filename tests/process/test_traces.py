"""A worker sends the spans of its runs, also those that ended shortly before it did."""

import json

from tests.app import coroutines, tasks
from tests.marks import committed
from tests.otel.conftest import spans  # noqa: F401

pytestmark = committed


def test_runs_of_a_worker_are_linked_to_enqueues_of_another_process(worker, spans, tmp_path):  # noqa: F811
    path = tmp_path / "spans"
    ids = [tasks.add.enqueue(1, 2).id, coroutines.double.enqueue(4).id, tasks.boom.using(max_attempts=1).enqueue().id]
    group = worker("--drain", JOBQUEUE_TEST_SPANS=str(path))
    assert group.wait() == 0
    sent = {span.attributes["messaging.message.id"]: f"0x{span.context.span_id:016x}" for span in spans.named("enq")}
    ran = [json.loads(line) for line in path.read_text().splitlines()]
    found = {span["attributes"]["messaging.message.id"]: span["links"][0]["context"]["span_id"] for span in ran}
    assert found == {job_id: sent[job_id] for job_id in ids}, group.text()
    assert [span["status"]["status_code"] for span in ran].count("ERROR") == 1

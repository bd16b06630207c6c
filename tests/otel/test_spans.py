"""With JobQueueInstrumentor each enqueue and each run is a span, and a run is linked to the enqueue of its job."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
from django.db import transaction
from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

from jobqueue import enqueue, enqueue_many, group, handler, task
from jobqueue.exceptions import PayloadError, Snooze, WrongSettings
from jobqueue.groups import get
from jobqueue.models import Job
from jobqueue.otel import JobQueueInstrumentor
from jobqueue.transitions import claim, retry, run_again
from jobqueue.worker.child.outcomes import settle
from jobqueue.worker.run.batch import calls_of
from jobqueue.worker.run.perform import Run, perform
from jobqueue.worker.run.timeouts import Together, Watch
from jobqueue.worker.shared.scoreboard import LeaseSlot
from tests.factories import job, make_due, make_job, run_lease, set_columns, settle_run, state
from tests.marks import committed, finding

pytestmark = [committed, pytest.mark.usefixtures("own_registry")]
SECRET = "card-4242"


@task(queue_name="mail", max_attempts=2)
def charge(card):
    raise ValueError(f"{card} was refused")


@task(queue_name="mail")
def logs_in():
    int("no number", password="hunter2")


@task(queue_name="mail")
def send(text):
    return trace.get_current_span().get_span_context().span_id


@task(queue_name="mail")
async def send_later(text):
    return trace.get_current_span().get_span_context().span_id


@task(queue_name="mail")
def waits():
    raise Snooze(after_seconds=60)


@task(queue_name="mail")
def calls():
    in_the_job[0]()


in_the_job = []


def run_mail():
    """Run what is due in the queue, as a worker does."""
    for lease in claim("mail", 100, worker="w"):
        settle_run(lease)


def linked(run):
    """The ids of the spans that a run is linked to."""
    return [link.context.span_id for link in run.links]


def test_a_run_is_linked_to_the_span_of_its_enqueue(spans):
    result = send.enqueue("hello")
    run_mail()
    sent, ran = spans.one("enqueue"), spans.one("process")
    assert (sent.name, sent.kind) == ("enqueue mail", SpanKind.PRODUCER)
    assert (ran.name, ran.kind) == ("process mail", SpanKind.CONSUMER)
    assert linked(ran) == [sent.context.span_id]
    assert ran.parent is None
    assert ran.context.trace_id != sent.context.trace_id
    assert dict(sent.attributes) == {
        "messaging.system": "jobqueue",
        "messaging.operation.name": "enqueue",
        "messaging.operation.type": "send",
        "messaging.destination.name": "mail",
        "messaging.message.id": result.id,
        "jobqueue.task": send.module_path,
    }
    assert dict(ran.attributes) == {
        "messaging.system": "jobqueue",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "mail",
        "messaging.message.id": result.id,
        "messaging.client.id": "w",
        "jobqueue.task": send.module_path,
        "jobqueue.attempt": 1,
        "jobqueue.max_attempts": 25,
        "jobqueue.outcome": "ok",
    }
    assert ran.status.status_code == StatusCode.UNSET


@pytest.mark.parametrize("function", [send, send_later])
def test_the_span_of_a_run_is_the_current_one_in_the_job(spans, function):
    result = function.enqueue("hello")
    run_mail()
    assert job(result.id).result == spans.one("process").context.span_id
    assert not trace.get_current_span().get_span_context().is_valid


def test_an_enqueue_is_a_child_of_the_span_around_it(spans):
    with spans.tracer.start_as_current_span("request") as request, transaction.atomic():
        send.enqueue("hello")
    assert spans.one("enqueue").parent.span_id == request.get_span_context().span_id


def test_each_attempt_is_a_span_and_an_error_is_told_without_its_message(spans):
    result = charge.enqueue(SECRET)
    run_mail()
    make_due(result.id)
    run_mail()
    assert state(result.id) == "FAILED"
    sent, (first, second) = spans.one("enqueue"), spans.named("process")
    assert linked(first) == linked(second) == [sent.context.span_id]
    assert [span.attributes["jobqueue.attempt"] for span in (first, second)] == [1, 2]
    for span in (first, second):
        assert span.status.status_code == StatusCode.ERROR
        assert span.attributes["error.type"] == span.status.description == "builtins.ValueError"
        (event,) = span.events
        assert event.name == "exception"
        assert event.attributes["exception.type"] == "builtins.ValueError"
        assert "in charge" in event.attributes["exception.stacktrace"]
        assert SECRET not in span.to_json()
    assert SECRET not in sent.to_json()


def test_a_line_of_code_in_the_event_of_an_error_is_shown_without_its_secrets(spans):
    logs_in.enqueue()
    run_mail()
    (event,) = spans.one("process").events
    assert "in logs_in" in event.attributes["exception.stacktrace"]
    assert 'password="********"' in event.attributes["exception.stacktrace"]
    assert "hunter2" not in spans.one("process").to_json()


def test_a_job_that_an_operator_retries_keeps_its_link(spans):
    result = charge.using(max_attempts=1).enqueue(SECRET)
    run_mail()
    assert retry(result.id)
    run_mail()
    sent = spans.one("enqueue").context.span_id
    assert [linked(span) for span in spans.named("process")] == [[sent]] * 2


def test_a_copy_is_linked_to_its_own_enqueue(spans):
    first = send.enqueue("hello").id
    run_mail()
    run_again(first)
    run_mail()
    (_, sent), (_, ran) = spans.named("enqueue"), spans.named("process")
    assert linked(ran) == [sent.context.span_id]


def test_many_jobs_have_one_span(spans):
    results = send.enqueue_many([("a",), ("b",), ("c",)])
    ids = enqueue_many("rows", [1, 2])
    many, rows = spans.named("enqueue")
    assert (many.name, many.attributes["messaging.batch.message_count"]) == ("enqueue mail", 3)
    assert (rows.name, rows.attributes["messaging.batch.message_count"]) == ("enqueue rows", 2)
    assert "messaging.message.id" not in many.attributes
    stored = {job(result.id).options["traceparent"] for result in results}
    assert stored == {f"00-{many.context.trace_id:032x}-{many.context.span_id:016x}-{many.context.trace_flags:02x}"}
    assert len({job(job_id).options["traceparent"] for job_id in ids}) == 1


def test_a_batch_is_one_run_linked_to_the_enqueue_of_each_job(spans):
    @handler("rows", batch=10)
    def load(leases):
        return [None, ValueError(SECRET)]

    enqueue("rows", 1)
    enqueue("rows", 2)
    (call,) = calls_of(claim("rows", 10, worker="w"))[0]
    outcomes = perform(call, Run(Together([LeaseSlot(), LeaseSlot()]), Watch(), lambda: False))
    assert settle(outcomes, SimpleNamespace(finished=0, failed=0, lost=0)) == []
    ran = spans.one("process")
    assert linked(ran) == [span.context.span_id for span in spans.named("enqueue")]
    assert ran.attributes["messaging.batch.message_count"] == 2
    assert ran.status.status_code == StatusCode.ERROR
    assert SECRET not in ran.to_json()


def test_a_snooze_is_no_error(spans):
    waits.enqueue()
    run_mail()
    ran = spans.one("process")
    assert ran.attributes["jobqueue.outcome"] == "snoozed"
    assert (ran.status.status_code, ran.events) == (StatusCode.UNSET, ())


def test_options_of_a_job_and_its_group_stay_beside_the_link(spans):
    with group("import") as made:
        made.add(send.using(timeout_seconds=9), "hello")
    options = Job.objects.get().options
    assert set(options) == {"traceparent", "timeout_seconds", "group"}
    run_mail()
    assert get(made.id).done == 1
    assert linked(spans.one("process")) == [spans.one("enqueue").context.span_id]


def test_a_held_key_adds_nothing_and_the_span_says_so(spans):
    first, second = (enqueue("q", 1, dedupe_key="k") for _ in range(2))
    assert first == second
    added, held = spans.named("enqueue")
    assert "jobqueue.added" not in added.attributes
    assert (held.attributes["jobqueue.added"], held.attributes["messaging.message.id"]) == (0, str(first))


def test_a_refused_enqueue_is_an_error(spans):
    with pytest.raises(PayloadError):
        enqueue("q", object())
    # Nothing was to be written yet.
    assert spans.named("enqueue") == []
    with pytest.raises(Exception, match="key"), transaction.atomic():
        enqueue("q", 1, using="missing-key")
    assert all(span.status.status_code == StatusCode.ERROR for span in spans.named("enqueue"))


@pytest.mark.parametrize("options", [None, {"traceparent": "nonsense"}, {"traceparent": 7}, [1], "text"])
def test_jobs_without_a_link_run_too(spans, options):
    job_id = make_job("mail")
    set_columns(job_id, options=options, task=send.module_path, payload={"args": ["x"], "kwargs": {}})
    run_mail()
    assert linked(spans.one("process")) == []


def test_plain_sql_can_give_a_link(spans):
    job_id = make_job("mail")
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    set_columns(job_id, options={"traceparent": parent}, task=send.module_path, payload={"args": ["x"], "kwargs": {}})
    run_mail()
    assert linked(spans.one("process")) == [0xB7AD6B7169203331]


def test_a_span_that_is_not_sampled_leaves_no_trace_on_the_job(spans):
    from opentelemetry.sdk.trace import TracerProvider

    JobQueueInstrumentor().instrument(tracer_provider=TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False))
    assert job(send.enqueue("hello").id).options is None


def test_nothing_is_stored_and_nothing_is_sent_when_it_is_off(spans):
    JobQueueInstrumentor().uninstrument()
    result = send.enqueue("hello")
    run_mail()
    assert job(result.id).options is None
    assert spans.named("") == []


class Broken(SpanProcessor):
    """Raises whenever it is called."""

    def on_start(self, span, parent_context=None):
        raise OSError("no collector")

    on_end = on_start


def test_a_processor_that_raises_costs_no_enqueue_and_no_job(spans, caplog):
    spans.provider.add_span_processor(Broken())
    result = send.enqueue("hello")
    (lease,) = claim("mail", worker="w")
    assert run_lease(lease).error is None
    assert job(result.id).options is None
    assert "could not start a span" in caplog.text


def test_a_process_that_the_job_has_forked_does_not_end_the_span(spans, monkeypatch):
    in_the_job.append(lambda: monkeypatch.setattr("os.getpid", lambda: 1))
    calls.enqueue()
    (lease,) = claim("mail", worker="w")
    run_lease(lease)
    in_the_job.clear()
    assert spans.named("process") == []


@finding("N7")
def test_without_the_package_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(WrongSettings, match="pip install opentelemetry-api"):
        JobQueueInstrumentor().instrument()


def test_it_can_be_switched_on_before_the_apps_are_ready():
    code = "from jobqueue.otel import JobQueueInstrumentor as I; I().instrument(); print(I().is_instrumented)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


def test_opentelemetry_is_not_imported_before_it_is_asked_for():
    code = "import sys, jobqueue.otel, jobqueue.worker.shared.processes; print('opentelemetry' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"

"""With JobQueueInstrumentor each publish() and each delivery of a relay is a span."""

import pytest
from django.db import connection, transaction
from django.test import override_settings
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

from jobqueue.exceptions import DestinationDown, TransactionRequired
from jobqueue.models import Job
from jobqueue.otel import JobQueueInstrumentor
from jobqueue.outbox import Destination, publish, subscriber
from jobqueue.outbox.destinations import local
from tests.marks import committed
from tests.outbox.helpers import drain, make_due, say

pytestmark = [committed, pytest.mark.usefixtures("no_subscribers")]
SECRET = "card-4242"


@pytest.fixture
def no_subscribers(monkeypatch):
    """Those that a test adds are gone after it."""
    monkeypatch.setattr(local, "_subscribers", {})


class Broker(Destination):
    """Takes what it is told to take."""

    def __init__(self, *outcomes):
        self.sent, self.outcomes = [], list(outcomes)

    def send(self, events):
        self.sent += events
        found = self.outcomes.pop(0) if self.outcomes else [None] * len(events)
        if isinstance(found, BaseException):
            raise found
        return found


@pytest.fixture
def route(monkeypatch):
    """route(broker): all topics go there."""

    def to(broker):
        monkeypatch.setattr("jobqueue.outbox.routes.Routes.find", lambda routes, topic: broker)
        return broker

    return to


def traceparent(span):
    """The header by which a span is found."""
    return f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-{span.context.trace_flags:02x}"


@pytest.mark.parametrize("key", [None, "order-7"])
def test_publish_is_the_span_that_creates_the_event(spans, key):
    with spans.tracer.start_as_current_span("request") as request:
        event_id = say("order.paid", {"card": SECRET}, key)
    span = spans.one("publish")
    assert (span.name, span.kind) == ("publish order.paid", SpanKind.PRODUCER)
    assert span.parent.span_id == request.get_span_context().span_id
    assert dict(span.attributes) == {
        "messaging.system": "jobqueue",
        "messaging.operation.name": "publish",
        "messaging.operation.type": "create",
        "messaging.destination.name": "order.paid",
        "messaging.message.id": str(event_id),
    }
    assert SECRET not in span.to_json()


def refuse(*args):
    """A database that is gone."""
    raise OSError("gone")


def test_a_refused_publish_is_an_error(spans):
    with pytest.raises(TransactionRequired):
        publish("t", 1)
    # Nothing was to be written yet.
    assert spans.named("publish") == []
    with transaction.atomic(), connection.execute_wrapper(refuse), pytest.raises(OSError, match="gone"):
        publish("t", 1)
    assert spans.one("publish").status.status_code == StatusCode.ERROR


def test_a_delivery_to_a_subscriber_is_the_span_around_its_code(spans):
    inside = []
    subscriber("order.*")(lambda event: inside.append((event, trace.get_current_span().get_span_context().span_id)))
    event_id = say("order.paid", {"card": SECRET})
    drain()
    span, ((event, current),) = spans.one("deliver"), inside
    assert (span.name, span.kind) == ("deliver order.paid", SpanKind.CONSUMER)
    assert current == span.context.span_id
    assert dict(span.attributes) == {
        "messaging.system": "jobqueue",
        "messaging.operation.name": "deliver",
        "messaging.operation.type": "process",
        "messaging.destination.name": "order.paid",
        "messaging.message.id": str(event_id),
        "jobqueue.attempt": 1,
    }
    assert span.parent is None
    assert event.headers["traceparent"] == traceparent(span)
    assert SECRET not in span.to_json()


def test_a_subscriber_that_raises_is_an_error_without_its_message(spans):
    def complain(event):
        raise ValueError(SECRET)

    subscriber("plain")(complain)
    subscriber("whole", atomic=True)(complain)
    for topic in ("plain", "whole"):
        say(topic)
    drain()
    make_due()
    drain()
    for topic in ("plain", "whole"):
        first, second = spans.named(f"deliver {topic}")
        assert [span.attributes["jobqueue.attempt"] for span in (first, second)] == [1, 2]
        for span in (first, second):
            assert (span.status.status_code, span.attributes["error.type"]) == (StatusCode.ERROR, "builtins.ValueError")
            assert "in complain" in span.events[0].attributes["exception.stacktrace"]
            assert SECRET not in span.to_json()


def test_a_broker_gets_the_context_of_the_delivery_in_the_headers(spans, route):
    broker = route(Broker())
    say("order.paid")
    say("order.paid")
    drain()
    span = spans.one("deliver")
    assert (span.kind, span.attributes["messaging.operation.type"]) == (SpanKind.PRODUCER, "send")
    assert span.attributes["messaging.batch.message_count"] == 2
    assert "messaging.message.id" not in span.attributes
    assert [event.headers["traceparent"] for event in broker.sent] == [traceparent(span)] * 2


@pytest.mark.parametrize("outcome", [[DestinationDown(SECRET)], DestinationDown(SECRET), [OSError(SECRET)]])
def test_a_broker_that_does_not_take_an_event_is_an_error(spans, route, outcome):
    route(Broker(outcome))
    say()
    drain()
    span = spans.one("deliver")
    assert span.status.status_code == StatusCode.ERROR
    assert SECRET not in span.to_json()


def test_a_job_of_an_event_has_the_trace_of_its_enqueue_and_no_header_in_its_payload(spans):
    with override_settings(JOBQUEUE={"OUTBOX": {"ROUTES": {"*": "queue:mail"}}}):
        event_id = say("t", 7)
        drain()
    delivered, sent = spans.one("deliver"), spans.one("enqueue")
    assert sent.parent.span_id == delivered.context.span_id
    job = Job.objects.get()
    assert job.options["traceparent"] == traceparent(sent)
    assert "traceparent" not in job.payload
    assert (job.payload["id"], job.payload["payload"]) == (event_id, 7)


def test_a_delivery_that_is_not_sampled_sends_no_header(spans, route):
    broker = route(Broker())
    JobQueueInstrumentor().instrument(tracer_provider=TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False))
    say()
    drain()
    assert "traceparent" not in broker.sent[0].headers


def test_without_the_instrumentor_there_is_no_span_and_no_header(spans, route):
    JobQueueInstrumentor().uninstrument()
    broker = route(Broker())
    say()
    drain()
    assert "traceparent" not in broker.sent[0].headers
    assert spans.named("") == []

"""The same events through RabbitMQ, Redis, SQS and Kafka, each the real thing or its maker's stand-in."""

import json
import os
import sys
import uuid

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from jobqueue.backoff import Backoff
from jobqueue.outbox import Relay
from jobqueue.outbox.destinations.brokers import KafkaBroker
from jobqueue.outbox.routes import DownTracker, Routes
from tests.blocking import MOMENT_SECONDS
from tests.marks import finding
from tests.outbox.helpers import drain, event, make_due, pending, say
from tests.patience import patient, wait_until
from tests.settings import VENDOR

kombu = pytest.importorskip("kombu")
pytestmark = [
    pytest.mark.django_db,
    # RabbitMQ may have to be installed first.
    pytest.mark.skipif(VENDOR != "sqlite", reason="brokers do not know the database: once is enough"),
    # boto3 and its dependencies warn about themselves.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


def routed(route):
    return override_settings(JOBQUEUE={"OUTBOX": {"ROUTES": {"*": route}}})


def fetch(url, queue, count, **options):
    """The messages of a queue, taken out: so many, which are waited for, and what is there beyond them."""
    found = []
    with kombu.Connection(url, transport_options=options) as connection:
        with connection.SimpleQueue(queue) as simple:
            while True:
                try:
                    message = simple.get(timeout=patient() if len(found) < count else MOMENT_SECONDS)
                except simple.Empty:
                    return found
                message.ack()
                found.append(message)


def check(messages, ids):
    assert [message.payload for message in messages] == [{"n": n} for n in range(len(ids))]
    assert [message.properties["message_id"] for message in messages] == [str(event_id) for event_id in ids]
    assert [message.headers["sequence"] for message in messages] == [str(event_id) for event_id in ids]
    assert {message.headers["key"] for message in messages} == {"k"}


def test_rabbitmq_gets_persistent_messages_in_order_with_the_events_id(rabbitmq):
    queue = f"orders-{uuid.uuid4().hex}"
    with routed({"URL": rabbitmq.url, "QUEUE": queue}):
        ids = [say("order.paid", {"n": n}, "k") for n in range(5)]
        relay = Relay("default")
        assert drain(relay)["delivered"] == 5
        relay.close()
    messages = fetch(rabbitmq.url, queue, 5)
    check(messages, ids)
    assert {message.properties["delivery_mode"] for message in messages} == {2}


def test_rabbitmq_refuses_what_no_queue_would_get_and_the_next_message_goes_through(rabbitmq):
    queue = f"bound-{uuid.uuid4().hex}"
    routes = {"bad": {"URL": rabbitmq.url, "EXCHANGE": "amq.topic"}, "good": {"URL": rabbitmq.url, "QUEUE": queue}}
    with override_settings(JOBQUEUE={"OUTBOX": {"ROUTES": routes}}):
        say("bad", 1, "a")
        say("good", {"n": 0}, "b")
        relay = Relay("default")
        counts = drain(relay)
        relay.close()
    assert (counts["delivered"], counts["failed"]) == (1, 1)
    assert len(fetch(rabbitmq.url, queue, 1)) == 1


def test_while_rabbitmq_is_down_events_wait_without_a_charge_and_arrive_in_order_after_it_is_back(
    rabbitmq, left_alone, monkeypatch
):
    queue = f"crash-{uuid.uuid4().hex}"
    with routed({"URL": rabbitmq.url, "QUEUE": queue}):
        relay = Relay("default")
        ids = [say("t", {"n": 0}, "k")]
        drain(relay)
        rabbitmq.kill()
        ids += [say("t", {"n": n}, "k") for n in range(1, 4)]
        drain(relay)
        assert pending() == ids[1:]
        assert (relay.counts["failed"], relay.counts["put_off"]) == (0, 1)
        rabbitmq.start()
        # The time for which it was to be left alone is over.
        monkeypatch.setattr("jobqueue.outbox.routes.DOWN_PAUSES", Backoff(0.5, 2, 1.0))
        relay.routes.down = DownTracker()

        def arrived():
            make_due()
            drain(relay)
            return not pending()

        wait_until(arrived, what="delivery after the restart")
        relay.close()
    messages = fetch(rabbitmq.url, queue, 4)
    assert [message.payload["n"] for message in messages] == [0, 1, 2, 3]


def declared(rabbitmq, queue, **options):
    """A connection that has declared a queue."""
    connection = kombu.Connection(rabbitmq.url)
    kombu.Queue(queue, durable=True, channel=connection.channel(), **options).queue_declare()
    return connection


@finding("M10")
@pytest.mark.parametrize(
    "arguments", [{"x-dead-letter-exchange": "dead"}, {"x-queue-type": "quorum", "x-delivery-limit": 5}]
)
def test_a_queue_of_rabbitmq_that_has_arguments_of_its_own_is_used_as_it_is(rabbitmq, arguments):
    queue = f"own-{uuid.uuid4().hex}"
    declared(rabbitmq, queue, queue_arguments=arguments).release()
    with routed({"URL": rabbitmq.url, "QUEUE": queue}):
        ids = [say("t", {"n": n}, "k") for n in range(3)]
        relay = Relay("default")
        counts = drain(relay)
        relay.close()
    assert (counts["delivered"], counts["failed"]) == (3, 0)
    with kombu.Connection(rabbitmq.url) as connection:
        channel = connection.channel()
        messages = [channel.basic_get(queue, no_ack=True) for _ in ids]
    assert [message.properties["message_id"] for message in messages] == [str(event_id) for event_id in ids]


@finding("M10")
def test_a_queue_that_rabbitmq_does_not_let_us_use_charges_nothing(rabbitmq, left_alone):
    queue = f"exclusive-{uuid.uuid4().hex}"
    owner = declared(rabbitmq, queue, exclusive=True)
    with routed({"URL": rabbitmq.url, "QUEUE": queue}):
        event_id = say("t", {"n": 0}, "k")
        relay = Relay("default")
        counts = drain(relay)
        relay.close()
    owner.release()
    assert (counts["put_off"], counts["failed"]) == (1, 0)
    assert event(event_id).attempts == 0


def test_redis_gets_the_messages_in_order(redis_url):
    queue = f"orders-{uuid.uuid4().hex}"
    with routed({"URL": redis_url, "QUEUE": queue}):
        ids = [say("t", {"n": n}, "k") for n in range(3)]
        relay = Relay("default")
        assert drain(relay)["delivered"] == 3
        relay.close()
    check(fetch(redis_url, queue, len(ids)), ids)


@pytest.fixture
def stream(redis_url):
    """A client of Redis, a new stream's name, and the beginning of a route to it."""
    redis = pytest.importorskip("redis")
    name = f"orders-{uuid.uuid4().hex}"
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        yield client, name, {"URL": redis_url.replace("redis://", "redis-stream://"), "STREAM": name}


def test_a_group_of_consumers_gets_the_entries_of_a_redis_stream_in_order_with_the_events_id(stream):
    client, name, route = stream
    client.xgroup_create(name, "mail", mkstream=True)
    with routed(route):
        ids = [say("order.paid", {"n": n}, "k") for n in range(3)]
        relay = Relay("default")
        assert drain(relay)["delivered"] == 3
        relay.close()
    ((_, entries),) = client.xreadgroup("mail", "consumer-1", {name: ">"}, count=10)
    found = [fields for _, fields in entries]
    assert [json.loads(fields["payload"]) for fields in found] == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert [fields["message-id"] for fields in found] == [str(event_id) for event_id in ids]
    assert {(fields["topic"], fields["key"], fields["attempt"]) for fields in found} == {("order.paid", "k", "1")}
    assert client.xpending(name, "mail")["pending"] == 3, "what was not acked is there for another consumer"


def test_a_redis_stream_keeps_about_as_many_entries_as_it_is_told(stream):
    client, name, route = stream
    with routed({**route, "MAXLEN": 100}):
        for n in range(400):
            say("t", n)
        relay = Relay("default")
        assert drain(relay)["delivered"] == 400
        relay.close()
    # Redis drops whole nodes of a hundred entries.
    assert 100 <= client.xlen(name) <= 200


def test_events_without_an_option_go_to_the_stream_of_their_topic(stream):
    client, name, route = stream
    with routed(route["URL"]):
        say(name, {"schön": "😀"})
        relay = Relay("default")
        assert drain(relay)["delivered"] == 1
        relay.close()
    ((_, fields),) = client.xrange(name)
    assert (json.loads(fields["payload"]), "key" in fields) == ({"schön": "😀"}, False)


def test_a_key_of_redis_that_is_no_stream_charges_nothing(stream, left_alone):
    client, name, route = stream
    client.set(name, "a string")
    with routed(route):
        event_id = say("t", 1, "k")
        relay = Relay("default")
        counts = drain(relay)
        relay.close()
    assert (counts["put_off"], counts["failed"], event(event_id).attempts) == (1, 0, 0)


def test_unknown_options_of_a_redis_stream_are_refused(stream):
    _, _, route = stream
    with routed({**route, "EXCHANGE": "x"}), pytest.raises(ImproperlyConfigured, match="EXCHANGE"):
        Routes("default").prepare()


@pytest.mark.parametrize("scheme", ["redis", "redis-stream"])
def test_a_broker_that_nobody_answers_for_charges_nothing(left_alone, scheme):
    with routed(f"{scheme}://127.0.0.1:1/0"):
        say("t", 1)
        counts = drain()
    assert (counts["put_off"], counts["failed"]) == (1, 0)
    assert len(pending()) == 1


@pytest.fixture(scope="module")
def sqs():
    server = pytest.importorskip("moto.server")
    found = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    found.start()
    os.environ |= {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
    yield found.get_host_and_port()
    found.stop()


@pytest.mark.parametrize("queue", ["orders", "orders.fifo"])
def test_sqs_gets_the_messages(sqs, queue):
    import boto3

    host, port = sqs
    endpoint = f"http://{host}:{port}"
    client = boto3.client("sqs", endpoint_url=endpoint)
    attributes = {"FifoQueue": "true"} if queue.endswith(".fifo") else {}
    address = client.create_queue(QueueName=queue, Attributes=attributes)["QueueUrl"]
    known = {queue: {"url": address, "access_key_id": "test", "secret_access_key": "test"}}
    options = {"region": "us-east-1", "is_secure": False, "predefined_queues": known}
    with routed({"URL": f"sqs://test:test@{host}:{port}", "QUEUE": queue, "TRANSPORT_OPTIONS": options}):
        ids = [say("t", {"n": n}, "k") for n in range(3)]
        relay = Relay("default")
        assert drain(relay)["delivered"] == 3
        relay.close()
    found = []
    while len(found) < 3:
        answer = client.receive_message(QueueUrl=address, MaxNumberOfMessages=10, AttributeNames=["All"])
        found += answer["Messages"]
    if queue.endswith(".fifo"):
        assert {message["Attributes"]["MessageGroupId"] for message in found} == {"k"}
        assert [message["Attributes"]["MessageDeduplicationId"] for message in found] == [str(n) for n in ids]


def test_kafka_gets_the_messages_in_order_keyed_by_their_key():
    confluent_kafka = pytest.importorskip("confluent_kafka")
    route = {"URL": "kafka://mock", "CONFIG": {"test.mock.num.brokers": 3}}
    with routed(route):
        ids = [say("orders", {"n": n, "ä": "ö"}, "k") for n in range(5)]
        relay = Relay("default")
        assert drain(relay)["delivered"] == 5
        destination = relay.routes.find("orders")
        assert isinstance(destination, KafkaBroker)
        brokers = destination._producer.list_topics(timeout=patient()).brokers.values()
        servers = ",".join(f"{broker.host}:{broker.port}" for broker in brokers)
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": servers, "group.id": "g", "auto.offset.reset": "earliest"}
        )
        consumer.subscribe(["orders"])
        found = []

        def all_are_there():
            message = consumer.poll(0)
            if message is not None and not message.error():
                found.append(message)
            return len(found) == 5

        wait_until(all_are_there, what="five messages")
        consumer.close()
        relay.close()
    assert [json.loads(message.value()) for message in found] == [{"n": n, "ä": "ö"} for n in range(5)]
    assert {message.key() for message in found} == {b"k"}
    assert [dict(message.headers())["message-id"].decode() for message in found] == [str(n) for n in ids]


def test_kafka_that_nobody_answers_for_charges_nothing(left_alone):
    pytest.importorskip("confluent_kafka")
    route = {"URL": "kafka://127.0.0.1:1", "CONFIG": {"message.timeout.ms": 500, "log_level": 0}}
    with routed(route):
        say("t", 1, "k")
        relay = Relay("default")
        counts = drain(relay)
        relay.close()
    assert (counts["put_off"], counts["failed"]) == (1, 0)


@pytest.mark.parametrize(
    ("url", "library", "package"),
    [
        ("amqp://localhost", "kombu", "kombu$"),
        ("sqs://", "kombu", r'"kombu\[sqs\]"$'),
        ("kafka://localhost", "confluent_kafka", "confluent-kafka$"),
        ("redis-stream://localhost", "redis", "redis$"),
    ],
)
def test_a_missing_library_is_said_with_what_to_install(monkeypatch, url, library, package):
    monkeypatch.setitem(sys.modules, library, None)
    with routed(url), pytest.raises(ImproperlyConfigured, match=f"Run: pip install {package}"):
        Routes("default").find("t")

"""What the doctor says of brokers, Redis and events without a route."""

import socket

import pytest

from jobqueue.doctor import Level, server, work
from tests.doctor.helpers import add_worker, found, ids, the
from tests.outbox.conftest import listen  # noqa: F401
from tests.outbox.helpers import say
from tests.patience import patient

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def worker(db, own_registry):
    """One that runs."""
    return add_worker()


@pytest.fixture
def patient_with_servers(monkeypatch):
    """One that is there may answer late on a busy machine, and the first use of a library imports it."""
    for name in ("ANSWER_SECONDS", "GIVE_UP_SECONDS"):
        monkeypatch.setattr(server, name, patient())


def routes(settings, url):
    settings.JOBQUEUE = {"OUTBOX": {"ROUTES": {"mail.*": url}}}


@pytest.fixture
def closed_port():
    """A port on which nobody listens."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        yield one.getsockname()[1]


@pytest.mark.usefixtures("patient_with_servers")
def test_a_broker_that_answers_is_no_finding(settings, redis_url):
    routes(settings, redis_url.replace("redis://", "redis-stream://"))
    assert ids() == []


@pytest.mark.parametrize("scheme", ["redis-stream", "amqp", "kafka"])
def test_a_broker_that_nobody_has_started_is_an_error(settings, closed_port, scheme):
    pytest.importorskip({"amqp": "kombu", "kafka": "confluent_kafka"}.get(scheme, "redis"))
    routes(settings, f"{scheme}://user:secret@127.0.0.1:{closed_port}")
    one = the("broker_unreachable")
    assert (one.level, one.evidence["route"]) == (Level.ERROR, "mail.*")
    assert "secret" not in str(one)


def test_a_broker_that_takes_the_connection_and_does_not_answer_is_given_up(settings):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        routes(settings, f"redis-stream://127.0.0.1:{silent.getsockname()[1]}")
        # It returns, and nobody has answered.
        found = list(server.brokers("default"))
    assert [one.id for one in found] == ["broker_unreachable"]


@pytest.mark.usefixtures("patient_with_servers")
def test_a_broker_in_the_memory_of_the_process_is_there(settings):
    pytest.importorskip("kombu")
    routes(settings, "memory://")
    assert ids() == []


def test_events_that_no_route_and_no_subscriber_takes_are_a_warning(listen, settings):  # noqa: F811
    listen("known")
    say("known", 1)
    assert ids() == []
    first, _ = say("nobody", 1, "k"), say("known", 2, "k")
    one = the("events_unrouted")
    assert (one.level, one.evidence) == (
        Level.WARNING,
        {"topic": "nobody", "events": [first], "number": 1, "behind": 1},
    )
    settings.JOBQUEUE = {"OUTBOX": {"ROUTES": {"nobody": "queue:q"}}}
    assert ids() == []


def test_topics_that_are_not_named_are_counted(monkeypatch):
    monkeypatch.setattr(work, "SHOWN", 1)
    for number in range(3):
        say(f"nobody{number}", 1, f"k{number}")
    first, others = (one for one in found() if one.id == "events_unrouted")
    assert first.evidence["topic"] == "nobody0"
    assert others.evidence == {"more": 2}


@pytest.mark.usefixtures("patient_with_servers")
@pytest.mark.parametrize("name", ["WAKEUP", "REDIS_URL"])
def test_a_redis_server_that_nobody_has_started_is_a_warning(settings, closed_port, redis_url, name):
    settings.JOBQUEUE = {name: redis_url}
    assert ids() == []
    settings.JOBQUEUE = {name: f"redis://user:secret@127.0.0.1:{closed_port}"}
    one = the("redis_unreachable")
    assert (one.level, one.evidence["setting"]) == (Level.WARNING, name)
    assert "secret" not in str(one)

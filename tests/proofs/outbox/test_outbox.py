"""Everything arrives, in the order of the commits per key, whatever becomes of the relays."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict

import pytest
from django.db import connection, transaction

from jobqueue.db.clock import UtcNowPlus
from jobqueue.models import IdempotencyRecord, OutboxEvent
from jobqueue.outbox import Relay, publish
from jobqueue.outbox.destinations import local
from tests.app.models import Account, Ticket
from tests.marks import committed
from tests.outbox.helpers import drain, make_due
from tests.patience import patient
from tests.proofs.outbox.publishers import Publishers
from tests.proofs.outbox.relays import Relays
from tests.proofs.running import ROOT, wait_for
from tests.settings import VENDOR

# At full size four databases share the machine.
PATIENCE_SECONDS = 1500
pytestmark = [committed, pytest.mark.timeout(2 * PATIENCE_SECONDS)]


@pytest.fixture
def relays(tmp_path):
    started = []

    def start(count, **env):
        started.append(Relays(tmp_path, count, **env))
        return started[-1]

    connection.close()
    yield start
    for found in started:
        found.kill_all()


def check(publishers, lines):
    """Nothing missing, nothing from nowhere, per-key order unbroken; how many came twice."""
    expected = {key: [turns[turn] for turn in sorted(turns)] for key, turns in publishers.committed.items()}
    first = defaultdict(list)
    times = Counter(event_id for event_id, _, _ in lines)
    seen = set()
    for event_id, key, _ in lines:
        if event_id not in seen:
            seen.add(event_id)
            first[key].append(event_id)
    assert not {number for _, _, number in lines} & publishers.undone, "a rollback published"
    assert {key: sorted(ids) for key, ids in first.items()} == {key: sorted(ids) for key, ids in expected.items()}
    assert dict(first) == expected, "the order of a key is broken"
    return sum(times.values()) - len(times)


def test_relays_that_are_killed_and_paused_lose_nothing_and_keep_the_order_of_every_key(relays, full, figure):
    """Relays under kill -9 and SIGSTOP: all that committed and nothing else, in order per key, once after the inbox."""
    total, keys, count = (20_000, 200, 4) if full else (240, 12, 2)
    random.seed(total)
    publishers = Publishers(total, [f"key-{n}" for n in range(keys)])
    running = relays(count)
    begun = time.monotonic()
    publishers.start()
    trouble = threading.Thread(target=running.trouble, args=(1.0 if full else 0.7,), daemon=True)
    wait_for(running.lines, 60, "the first delivery")
    trouble.start()
    publishers.join(PATIENCE_SECONDS)
    wait_for(lambda: running.kills + running.pauses >= (10 if full else 2), 60, "trouble")

    def delivered():
        return not OutboxEvent.objects.filter(processed_at=None).exists()

    wait_for(delivered, PATIENCE_SECONDS, "the last delivery")
    seconds = time.monotonic() - begun
    running.calm()
    trouble.join(patient(60))
    assert not trouble.is_alive()
    # One that was started just now has not yet said what it does about a signal.
    assert set(running.end()) <= {0, -signal.SIGTERM}, running.output()[-3000:]
    twice = check(publishers, running.lines())
    effects = sum(Account.objects.filter(owner__in=publishers.keys).values_list("balance", flat=True))
    assert effects == total, "an effect was lost, or happened twice after the inbox"
    assert IdempotencyRecord.objects.count() == total
    figure("relays", count)
    figure("events on keys", f"{total} on {keys}")
    figure("rolled back events", len(publishers.undone))
    figure("kill -9 / pauses beyond the lease", f"{running.kills} / {running.pauses}")
    figure("came twice, before the inbox", twice)
    figure("effects", effects)
    figure("seconds", round(seconds, 1))


def test_broker_restarts_and_killed_relays_lose_nothing_and_keep_the_order_of_every_key(relays, request, full, figure):
    """Relays under kill -9 to a RabbitMQ under kill -9: nothing missing in its queue, order per key unbroken."""
    if not full:
        pytest.skip("the short form of this is in tests/outbox/test_brokers.py")
    kombu = pytest.importorskip("kombu")
    broker = request.getfixturevalue("rabbitmq")
    queue = f"proof-{VENDOR}"
    total, keys, restarts = 20_000, 200, 3
    publishers = Publishers(total, [f"key-{n}" for n in range(keys)])
    running = relays(4, JOBQUEUE_TEST_ROUTES=json.dumps({"proof.*": {"URL": broker.url, "QUEUE": queue}}))
    begun = time.monotonic()
    publishers.start()
    trouble = threading.Thread(target=running.trouble, args=(2.0,), daemon=True)
    trouble.start()
    for _ in range(restarts):
        time.sleep(8)
        broker.kill()
        broker.start()
    publishers.join(PATIENCE_SECONDS)
    everything = OutboxEvent.objects.filter(processed_at=None)
    wait_for(lambda: not everything.exists(), PATIENCE_SECONDS, "the last delivery")
    seconds = time.monotonic() - begun
    running.calm()
    trouble.join(patient(60))
    assert not trouble.is_alive()
    running.end()
    lines = []
    with kombu.Connection(broker.url) as session, session.channel() as channel:
        while (message := channel.basic_get(queue, no_ack=True)) is not None:
            headers = message.properties["application_headers"]
            lines.append((int(headers["message-id"]), headers["key"], json.loads(message.body)["n"]))
    twice = check(publishers, lines)
    figure("events on keys", f"{total} on {keys}")
    figure("kill -9 of relays / pauses / of the broker", f"{running.kills} / {running.pauses} / {restarts}")
    figure("came twice, before the inbox", twice)
    figure("seconds", round(seconds, 1))


def test_a_second_signal_ends_a_relay_at_once_and_its_events_come_back(relays):
    with transaction.atomic():
        event_id = publish("proof.slow", {"n": 1, "seconds": 300}, "k")
    running = relays(1)
    wait_for(running.lines, 60, "the delivery")
    (relay,) = running.processes
    relay.terminate()
    with pytest.raises(subprocess.TimeoutExpired):
        # The delivery under way is waited for.
        relay.wait(0.5)

    def ended():
        # A second one may come before the first one was noticed, and then is none.
        relay.terminate()
        return relay.poll() is not None

    wait_for(ended, 30, "the end of the relay")
    assert relay.wait() == 128 + signal.SIGTERM
    assert OutboxEvent.objects.get(pk=event_id).lock_token is not None
    make_due()
    OutboxEvent.objects.update(payload={"n": 2})
    again = relays(1)
    wait_for(lambda: OutboxEvent.objects.get(pk=event_id).processed_at, 60, "the second delivery")
    assert [n for _, _, n in again.lines()] == [1, 2]
    assert again.end() == [0]


def test_workers_relay_and_delete_old_rows_too(run_worker):
    with transaction.atomic():
        old = publish("proof.turn", {"n": 9}, "old")
    OutboxEvent.objects.filter(pk=old).update(lane=None, due_at=None, processed_at=UtcNowPlus(-604_801))
    IdempotencyRecord.objects.create(digest=b"old", label="old", expires_at=UtcNowPlus(-1))
    worker = run_worker(
        "--queues=-none", DJANGO_SETTINGS_MODULE="tests.proofs.outbox.settings", JOBQUEUE_TEST_IN_WORKERS=1
    )
    with transaction.atomic():
        for n in range(5):
            publish("proof.turn", {"n": n}, "k")
    wait_for(lambda: len(worker.lines("heard")) == 5, 60, "delivery by a worker")
    assert [int(words[3]) for words in worker.lines()] == list(range(5))
    wait_for(lambda: not OutboxEvent.objects.filter(pk=old).exists(), 60, "the end of an old event")
    wait_for(lambda: not IdempotencyRecord.objects.filter(label="old").exists(), 60, "the end of an expired record")
    assert worker.stop() == 0


def test_two_processes_with_the_same_keys_have_one_effect_each_and_both_get_the_result(tmp_path, full, figure):
    """Two processes, the same idempotency keys at the same time: one effect per key, both get its result."""
    count = 1_000 if full else 40
    connection.close()
    env = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.proofs.outbox.settings",
        "JOBQUEUE_TEST_NAME": str(connection.settings_dict["NAME"]),
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-m", "tests.proofs.outbox.race_once", str(count), str(tmp_path / "go")]
    racers = [subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        for racer in racers:
            assert racer.stdout.readline() == "ready\n"
        (tmp_path / "go").touch()
        said = [racer.communicate(timeout=patient(300))[0] for racer in racers]
        answers = [[line.split() for line in text.splitlines()] for text in said]
    finally:
        for racer in racers:
            racer.kill()
            racer.wait()
    assert [racer.returncode for racer in racers] == [0, 0]
    results = [{n: by for n, by, _ in found} for found in answers]
    assert results[0] == results[1]
    assert len(results[0]) == count
    effects = dict(Ticket.objects.values_list("buyer", "number"))
    assert Ticket.objects.count() == count
    assert {n: f"{n}-{by}" for n, by in results[0].items()} == effects
    figure("keys", count)
    figure("effects by one / by the other", " / ".join(str(sum(d == "0" for _, _, d in found)) for found in answers))


@pytest.mark.parametrize("keys", [0, 200, 10_000_000], ids=["no keys", "200 keys", "a key each"])
def test_what_one_relay_delivers_in_a_second(keys, full, figure, monkeypatch):
    """One relay, a subscriber that does nothing: publishing and delivery."""
    total = 20_000 if full else 300
    monkeypatch.setattr(local, "_subscribers", {})
    local.subscriber("t")(lambda event: None)
    begun = time.monotonic()
    for start in range(0, total, 100):
        with transaction.atomic():
            for n in range(start, start + 100):
                publish("t", {"n": n}, f"{n % keys:08}" if keys else None)
    published = time.monotonic()
    relay = Relay("default")
    drain(relay)
    done = time.monotonic()
    assert relay.counts["delivered"] == total
    figure("keys", {0: "none", 200: "200"}.get(keys, "one per event"))
    figure("published per second, 100 per commit", round(total / (published - begun)))
    figure("delivered per second", round(total / (done - published)))

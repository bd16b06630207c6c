"""The admin pages of the outbox and of idempotency records."""

import re

import pytest
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.http import QueryDict
from django.test import RequestFactory
from django.test.utils import CaptureQueriesContext
from django.utils import translation
from django.utils.html import escape

from jobqueue.admin.page import readonly
from jobqueue.db.clock import UtcNow, UtcNowPlus
from jobqueue.idempotency import once
from jobqueue.idempotency.records import stored
from jobqueue.models import IdempotencyRecord, OutboxEvent
from jobqueue.outbox import dead_letters, discard, publish
from tests.admin.helpers import HOSTILE, LIMIT_STATEMENTS, SCRIPT, Inline, act, client_of, person, root, text_of
from tests.marks import committed
from tests.outbox.helpers import drain
from tests.settings import VENDOR

plain = pytest.mark.django_db

EVENTS = "/admin/jobqueue/outboxevent/"
RECORDS = "/admin/jobqueue/idempotencyrecord/"
STATES = {
    "waiting": {},
    "later": {"due_at": UtcNowPlus(60)},
    "leased": {"due_at": UtcNowPlus(60), "lock_token": b"t" * 16},
    "sent": {"lane": None, "due_at": None, "processed_at": UtcNow()},
    "dead_letter": {"due_at": None, "failed_at": UtcNow(), "last_error": "Traceback\nValueError: broken"},
    "dead letter, key went on": {"lane": None, "due_at": None, "failed_at": UtcNow(), "last_error": "broken"},
    "discarded": {"lane": None, "due_at": None, "failed_at": UtcNow(), "processed_at": UtcNow()},
}


def make(state="waiting", topic="t", payload=None, key="k"):
    with transaction.atomic():
        event_id = publish(topic, payload, key)
    OutboxEvent.objects.filter(pk=event_id).update(**STATES[state])
    return event_id


def page_of(event_id):
    return f"{EVENTS}{event_id}/change/"


def watcher(*more, name="ann"):
    """A browser of somebody who may see both tables, and `more`."""
    return client_of(person("view_outboxevent", "view_idempotencyrecord", *more, name=name))


def handler_reads():
    """Rows and index entries that this session has read so far."""
    with connection.cursor() as cursor:
        cursor.execute("SHOW SESSION STATUS LIKE 'Handler_read%'")
        return sum(int(count) for _, count in cursor.fetchall())


def remember(key, result=None, ttl_seconds=60):
    with once(key, ttl_seconds=ttl_seconds) as o:
        o.result = result
    return stored(key).digest.hex()


@plain
@pytest.mark.parametrize(
    ("state", "word", "next_sentence"),
    [
        ("waiting", ">waiting<", "delivers it when all earlier events of its key are delivered"),
        ("later", "not yet due", "Not before"),
        ("leased", "leased by a relay", "another one takes it"),
        ("sent", ">sent<", "it was delivered"),
        ("dead_letter", "dead letter, blocks its key", "Later events of its key wait for that"),
        ("dead letter, key went on", ">dead letter<", "a retry may deliver it after them"),
        ("discarded", ">discarded<", "it was discarded"),
    ],
)
def test_list_and_page_say_the_state_and_what_happens_next(state, word, next_sentence):
    event_id, client = make(state, topic="order.paid", key="customer-7"), root()
    for path in (EVENTS, page_of(event_id)):
        page = text_of(client.get(path))
        assert word in page
        assert "order.paid" in page
        assert "customer-7" in page
    assert next_sentence in page


@plain
def test_the_filter_shows_the_events_of_one_state():
    ids = {state: make(state, key=None) for state in STATES}
    client = root()
    shown = {
        "waiting": {"waiting", "later", "leased"},
        "dead_letter": {"dead_letter", "dead letter, key went on"},
        "sent": {"sent"},
        "discarded": {"discarded"},
    }
    for name, states in shown.items():
        page = text_of(client.get(EVENTS, {"state": name}))
        assert {state for state, event_id in ids.items() if page_of(event_id) in page} == states
    # Back to the list without filters, said so by Django's ?e=1.
    assert client.get(EVENTS, {"state": "nonsense"})["Location"].endswith("?e=1")


@plain
def test_an_event_is_found_by_its_id_and_by_its_key_while_it_waits():
    one, other, sent = make(key="a key"), make(key="b"), make("sent", key="a key")
    client = root()
    for term, found in ((str(sent), {sent}), ("a key", {one}), (" b ", {other}), ("x" * 65, set()), ("' OR 1", set())):
        page = text_of(client.get(EVENTS, {"q": term}))
        assert {n for n in (one, other, sent) if page_of(n) in page} == found, term


@plain
def test_retry_makes_only_dead_letters_due_again():
    bad, waiting, sent = make("dead_letter"), make("later"), make("sent")
    client = watcher("retry_job")
    act(client, "retry", bad, waiting, sent, path=EVENTS)
    page = text_of(client.get(EVENTS))
    assert "1 event will be delivered again." in page
    assert "2 were not changed, because their state does not allow it: waiting, not yet due; sent." in page
    row = OutboxEvent.objects.get(pk=bad)
    assert (row.failed_at, row.attempts) == (None, 0)
    assert row.lane is not None
    (entry,) = LogEntry.objects.all()
    assert (entry.object_id, entry.change_message) == (str(bad), "retry (was dead_letter)")


@plain
def test_discard_takes_an_event_out_with_its_reason_and_lets_its_key_go_on():
    bad = make("dead_letter")
    client = watcher("discard_job")
    response = act(client, "discard", bad, path=EVENTS, jobqueue_page="1", reason="sent by hand <b>")
    assert response["Location"] == page_of(bad)
    row = OutboxEvent.objects.get(pk=bad)
    assert row.lane is None
    assert row.processed_at is not None
    assert row.last_error == "Traceback\nValueError: broken\nDiscarded: sent by hand <b>"
    assert not dead_letters()
    page = text_of(client.get(page_of(bad)))
    assert "sent by hand &lt;b&gt;" in page
    assert "jobqueue-verbs" not in page
    assert not discard(bad)


@plain
def test_each_verb_needs_its_own_permission():
    bad = make("dead_letter")
    before = OutboxEvent.objects.values().get()
    for mine, other, name in (("retry_job", "discard", "ann"), ("discard_job", "retry", "bob")):
        client = watcher(mine, name=name)
        assert f'value="{other}"' not in text_of(client.get(EVENTS)) + text_of(client.get(page_of(bad)))
        act(client, other, bad, path=EVENTS)
        assert OutboxEvent.objects.values().get() == before
    assert client_of(person("retry_job", "discard_job", name="eve")).get(EVENTS).status_code == 403


@plain
def test_payload_and_result_are_hidden_without_their_permission_and_not_even_read():
    event_id, digest = make(payload={"card": "4242-secret"}), remember("k", {"body": "hidden-result"})
    seen = watcher("view_payload")
    assert "4242-secret" in text_of(seen.get(page_of(event_id)))
    assert "hidden-result" in text_of(seen.get(f"{RECORDS}{digest}/change/"))
    client = watcher(name="bob")
    for path, word in ((page_of(event_id), "payload"), (f"{RECORDS}{digest}/change/", "result")):
        with CaptureQueriesContext(connection) as captured:
            page = text_of(client.get(path))
        assert "4242-secret" not in page
        assert "hidden-result" not in page
        mine = [q["sql"] for q in captured.captured_queries if re.search("job_outbox|job_idempotency", q["sql"])]
        assert mine
        assert not [sql for sql in mine if re.search(rf"\b{word}\b", sql)]
    for path in (f"{EVENTS}?payload__contains=4", f"{RECORDS}?result__contains=h"):
        assert client.get(path).status_code == 400


@plain
@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_shown_as_text_everywhere(text):
    event_id = make("dead_letter", payload={text: text})
    error = f"{text}\n{text}"
    OutboxEvent.objects.filter(pk=event_id).update(topic=text, key=text.encode(), last_error=error)
    digest, client = remember(text, {text: text}), root()
    shown = escape(text.replace("\u202e", "\\u202e"))
    for path in (EVENTS, page_of(event_id), f"{EVENTS}?q=x&state=dead_letter", RECORDS, f"{RECORDS}{digest}/change/"):
        page = text_of(client.get(path))
        assert "?q" in path or shown in page, path
        assert SCRIPT not in page
        assert not Inline(page).found
    act(client, "discard", event_id, path=EVENTS, reason=text)
    assert SCRIPT not in text_of(client.get(page_of(event_id)))
    assert not Inline(text_of(client.get(f"{RECORDS}{digest}/delete/"))).found


def unrouted_events():
    """An event for which no relay has found a subscriber, and one behind it."""
    first, second = make(topic="order.paid", key="customer-7"), make(topic="order.sent", key="customer-7")
    assert drain()["put_off"] == 1
    return first, second


@plain
def test_list_and_pages_say_which_events_wait_for_a_route_and_which_wait_behind_them():
    first, second = unrouted_events()
    client = watcher()
    page = text_of(client.get(EVENTS))
    assert f"No route and no subscriber: order.paid: 1 waiting (#{first})" in page
    assert f"and behind them, by key, 1 (#{second}). Add a subscriber to &lt;app&gt;/tasks.py" in page
    assert "waiting, no route and no subscriber" in page
    assert f"waits for event {first}" in page
    page = text_of(client.get(page_of(first)))
    assert "or skip the event." in page
    assert f"1 later event of its key waits behind it: #{second}." in page
    assert f"It waits for event {first}, which needs your help." in text_of(client.get(page_of(second)))


@plain
def test_an_event_behind_a_dead_letter_says_so_too():
    first, second = make("dead_letter"), make("later")
    make("waiting", key="other")
    client = root()
    assert f"It waits for event {first}" in text_of(client.get(page_of(second)))
    assert "No route" not in text_of(client.get(EVENTS))


@plain
def test_skip_takes_an_unrouted_event_out_of_its_key():
    first, second = unrouted_events()
    client = watcher("discard_job")
    assert 'value="skip"' in text_of(client.get(page_of(first)))
    act(client, "skip", first, second, path=EVENTS)
    page = text_of(client.get(EVENTS))
    assert "1 event is a dead letter now, for which no other waits." in page
    assert "1 was not changed, because its state does not allow it" in page
    assert [event.pk for event in dead_letters()] == [first]
    assert OutboxEvent.objects.get(pk=second).lane is not None


@plain
def test_skip_of_a_dead_letter_for_which_nothing_waits_says_so():
    event_id = make("dead_letter", key=None)
    OutboxEvent.objects.filter(pk=event_id).update(lane=None)
    client = watcher("discard_job")
    act(client, "skip", event_id, path=EVENTS)
    page = text_of(client.get(EVENTS))
    assert "1 was not changed: no later event waits for it, or its state has just changed." in page
    assert "dedupe key" not in page


@plain
def test_a_delivered_event_does_not_show_that_it_once_had_no_route():
    first, _second = unrouted_events()
    OutboxEvent.objects.filter(pk=first).update(**STATES["sent"])
    client = root()
    for path in (page_of(first), f"{EVENTS}?state=sent"):
        assert "no route and no subscriber" not in text_of(client.get(path)).lower()


@plain
@pytest.mark.parametrize("query", [{}, {"state": "waiting"}, {"state": "sent"}, {"state": "dead_letter"}, {"q": "k"}])
def test_the_list_costs_the_same_queries_however_many_rows(query):
    client, counts = watcher("retry_job"), []
    for many in (3, 120):
        with transaction.atomic():
            for n in range(many):
                publish("t", {"n": n}, "k")
                publish("t", {"n": n})
        OutboxEvent.objects.filter(key=None, failed_at=None).update(**STATES["sent"])
        OutboxEvent.objects.filter(pk__lte=OutboxEvent.objects.earliest("pk").pk + 2).update(**STATES["dead_letter"])
        client.get(EVENTS, query)
        with CaptureQueriesContext(connection) as captured:
            page = text_of(client.get(EVENTS, query))
        counts.append(len(captured))
        mine = [q["sql"] for q in captured.captured_queries if "job_outbox" in q["sql"]]
        assert page.count('class="field-id"') <= 50
        assert all("LIMIT" in sql and "payload" not in sql for sql in mine), mine
        counting = [sql for sql in mine if "COUNT(" in sql.upper()]
        assert len(counting) == 1
        assert f"LIMIT {readonly.COUNT_CAP}" in counting[0]
    assert counts[0] == counts[1] <= 7 + LIMIT_STATEMENTS


@plain
def test_records_are_listed_by_their_expiry_and_found_by_their_whole_key():
    late, soon = remember("late", ttl_seconds=9000), remember(("refund", 42), ttl_seconds=3600)
    gone = remember("gone")
    IdempotencyRecord.objects.filter(label="gone").update(expires_at=UtcNowPlus(-5))
    client = root()
    with CaptureQueriesContext(connection) as captured:
        page = text_of(client.get(RECORDS))
    assert page.index(late) < page.index(soon) < page.index(gone)
    assert all("LIMIT" in q["sql"] for q in captured.captured_queries if "job_idempotency" in q["sql"])
    assert len(captured) <= 6 + LIMIT_STATEMENTS
    for query, found in (
        ({"q": "late"}, {late}),
        ({"q": '["refund", 42]'}, {soon}),
        ({"q": '["refund", "42"]'}, set()),
        ({"q": "lat"}, set()),
        ({"q": "[[1]]"}, set()),
        ({"q": "[" * 5000}, set()),
        ({"state": "expired"}, {gone}),
        ({"state": "kept"}, {late, soon}),
    ):
        page = text_of(client.get(RECORDS, query))
        assert {digest for digest in (late, soon, gone) if digest in page} == found, query


@plain
def test_a_record_can_be_deleted_with_djangos_permission_and_nothing_else_can_be_done():
    digest = remember("k", 1)
    page = f"{RECORDS}{digest}/change/"
    reader, keeper = watcher(), watcher("delete_idempotencyrecord", name="bob")
    assert "deletelink" not in text_of(reader.get(page))
    assert reader.post(f"{RECORDS}{digest}/delete/", {"post": "yes"}).status_code == 403
    assert keeper.post(page, {"label": "x"}).status_code == 403
    assert keeper.get(f"{RECORDS}add/").status_code == 403
    assert "deletelink" in text_of(keeper.get(page))
    assert digest in text_of(keeper.get(f"{RECORDS}{digest}/delete/"))
    assert keeper.post(f"{RECORDS}{digest}/delete/", {"post": "yes"}).status_code == 302
    assert not IdempotencyRecord.objects.exists()
    (entry,) = LogEntry.objects.all()
    assert entry.object_id == digest
    for odd in ("zz", "00", "00" * 32, "_27"):
        assert keeper.get(f"{RECORDS}{odd}/change/", follow=True).status_code in (200, 404)


@plain
def test_the_pages_speak_korean():
    make("dead_letter")
    remember("k")
    client = root()
    with translation.override("ko"):
        for path, word in ((EVENTS, "데드 레터"), (RECORDS, "보관 중")):
            assert word in text_of(client.get(path, HTTP_ACCEPT_LANGUAGE="ko"))


@committed
@pytest.mark.skipif(VENDOR not in ("mysql", "mariadb"), reason="reads the session's counters of MySQL and MariaDB")
def test_the_waiting_events_are_found_without_reading_the_delivered_ones():
    with transaction.atomic():
        for n in range(2000):
            publish("t", n)
    OutboxEvent.objects.filter(pk__gt=OutboxEvent.objects.earliest("pk").pk + 5).update(**STATES["sent"])
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE TABLE job_outbox")
        cursor.fetchall()
    request = RequestFactory().get(EVENTS)
    request.user = User(is_superuser=True, is_staff=True, is_active=True)
    rows = {}
    for state in ("waiting", "dead_letter", "sent"):
        request.GET = QueryDict(f"state={state}")
        before = handler_reads()
        found = admin.site.get_model_admin(OutboxEvent).get_changelist_instance(request)
        list(found.result_list)
        rows[state] = handler_reads() - before
    assert max(rows["waiting"], rows["dead_letter"]) < 50, rows
    # To count reads them twice, up to the cap; the page itself is 50.
    assert rows["sent"] < 2 * 2000 + 100


@plain
def test_the_words_of_a_deletion_do_not_turn_round():
    digest, keeper = remember("a\u202eb", 1), watcher("delete_idempotencyrecord")
    assert "\u202e" not in text_of(keeper.get(f"{RECORDS}{digest}/delete/"))
    told = text_of(keeper.post(f"{RECORDS}{digest}/delete/", {"post": "yes"}, follow=True))
    assert "\u202e" not in told
    assert LogEntry.objects.get().object_repr == "a\\u202eb"

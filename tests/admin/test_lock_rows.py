"""The lists of lease locks and of mutexes."""

import re
import uuid

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobqueue.admin.page import readonly
from jobqueue.db.clock import UtcNow, UtcNowPlus
from jobqueue.locks import lease_lock, mutex
from jobqueue.models import LockRow, MutexRow
from tests.admin.helpers import HOSTILE, Inline, client_of, person, root, sent, text_of

pytestmark = pytest.mark.django_db

LOCKS, MUTEXES, ACTIVITY = ("/admin/jobqueue/lockrow/", "/admin/jobqueue/mutexrow/", "/admin/jobqueue/lockstat/")


@pytest.fixture(autouse=True)
def no_other_rows(db):
    """Mutexes commit their rows in sessions of their own, so those of earlier tests are left."""
    LockRow.objects.all().delete()
    MutexRow.objects.all().delete()


def lock(key, seconds=300, released=False, fence=41, owner="web-1:211:MainThread"):
    LockRow.objects.create(lock_key=key, fence=fence, owner=owner, expires_at="2030-01-01T00:00:00Z")
    token = None if released else uuid.uuid4().bytes
    times = {"acquired_at": UtcNowPlus(-60), "expires_at": UtcNowPlus(seconds)}
    LockRow.objects.filter(pk=key).update(owner_token=token, **times)


def keys(page):
    """The keys of the list, in its order."""
    return [part.partition(">")[2].partition("<")[0] for part in page.split('class="field-key"')[1:]]


def test_a_lock_that_is_held_is_listed_with_its_holder_and_its_end():
    lock("report")
    page = text_of(root().get(LOCKS))
    for text in ("report", "held now", "web-1:211:MainThread", ">41<"):
        assert text in page, text
    assert re.search(r">1m \d+s ago<", page)
    assert re.search(r">in (5m 0s|4m \d\ds)<", page)
    assert "<h1>Lease locks</h1>" in page
    assert "1 lock" in page


def test_held_expired_and_released_locks_are_told_apart_those_that_end_last_first():
    lock("dead", seconds=-30)
    lock("held", seconds=600)
    lock("done", seconds=-5, released=True)
    client = root()
    page = text_of(client.get(LOCKS))
    assert keys(page) == ["held", "done", "dead"]
    for state, key in (("held", "held"), ("expired", "dead"), ("free", "done")):
        assert keys(text_of(client.get(LOCKS, {"state": state}))) == [key]
    assert '<span class="jobqueue-state jobqueue-expired">expired</span>' in page
    assert client.get(LOCKS, {"state": "bogus"}).status_code == 302


def test_real_locks_are_found_by_their_exact_key():
    with lease_lock("report 100%", 60):
        client = root()
        assert keys(text_of(client.get(LOCKS, {"q": "report 100%"}))) == ["report 100%"]
        assert keys(text_of(client.get(LOCKS, {"q": "report"}))) == []


def test_a_mutex_is_shown_and_found_as_its_key_was_given():
    mutex("invoice")
    mutex("주문", 42)
    mutex("x" * 400)
    client = root()
    page = text_of(client.get(MUTEXES))
    assert "A mutex is held by a transaction" in page
    assert ">invoice</span>" in page
    assert ">[&quot;주문&quot;, 42]</span>" in page
    found = {"invoice": 1, '["주문", 42]': 1, '["invoice"]': 1, "x" * 400: 1, "주문": 0, "[[1]]": 0}
    for term, wanted in found.items():
        assert len(keys(text_of(client.get(MUTEXES, {"q": term})))) == wanted, term


def test_mutexes_tell_how_often_and_when_they_were_taken():
    MutexRow.objects.create(lock_key="a", takes=12_345)
    MutexRow.objects.filter(pk="a").update(taken_at=UtcNowPlus(-300))
    MutexRow.objects.create(lock_key="b")
    page = text_of(root().get(MUTEXES))
    assert keys(page) == ["a", "b"]
    assert "12,345" in page
    assert re.search(r">5m \d+s ago<", page)


@pytest.mark.parametrize("path", [LOCKS, MUTEXES])
def test_pages_go_on_behind_the_last_row_and_back(path, monkeypatch):
    monkeypatch.setattr(readonly.ReadOnlyAdmin, "list_per_page", 2)
    for number in range(5):
        lock(f"k{number}", seconds=600)
        MutexRow.objects.create(lock_key=f"k{number}")
    LockRow.objects.update(expires_at=UtcNow())
    client, found, address = root(), [], path
    while address:
        page = text_of(client.get(address))
        found += keys(page)
        links = [attrs["href"] for tag, attrs in Inline(page).tags if tag == "a" and attrs.get("rel") == "next"]
        address = f"{path}{links[0]}" if links else ""
    assert sorted(found) == [f"k{number}" for number in range(5)]
    assert len(found) == 5
    before = [attrs["href"] for tag, attrs in Inline(page).tags if tag == "a" and attrs.get("rel") == "prev"]
    assert keys(text_of(client.get(f"{path}{before[0]}"))) == found[2:4]


def test_the_pages_about_locks_lead_to_each_other_as_far_as_one_may_see_them():
    page = text_of(root().get(ACTIVITY))
    for path in (LOCKS, MUTEXES, ACTIVITY):
        assert f'<a href="{path}"' in page
    bar = page.partition('class="jobqueue-nav"')[2].partition("</nav>")[0]
    assert 'aria-current="page">Locks' in bar
    page = text_of(client_of(person("view_lockrow", "view_lockstat", name="bob")).get(LOCKS))
    assert MUTEXES not in page
    assert 'aria-current="page">Locks' in page.partition('class="jobqueue-nav"')[2].partition("</nav>")[0]


def test_without_the_view_permission_nothing_is_shown():
    lock("report")
    client = client_of(person("view_job", "view_lockstat"))
    for path in (LOCKS, MUTEXES, f"{LOCKS}report/change/", f"{LOCKS}report/history/", f"{MUTEXES}x/change/"):
        assert client.get(path).status_code == 403
    assert "jobqueue-sections" not in text_of(client.get(ACTIVITY))


def test_nothing_can_be_changed_or_deleted():
    lock("report")
    client = root()
    page = text_of(client.get(LOCKS))
    assert 'name="action"' not in page
    assert "It cannot be taken from its holder" in page
    for path in ("add/", "report/delete/"):
        assert client.post(LOCKS + path, {"post": "yes"}).status_code == 403
    for data in ({"action": "delete_selected", "_selected_action": "report", "post": "yes"}, {"_save": 1}):
        client.post(LOCKS, data)
    client.post(f"{LOCKS}report/change/", {"owner": "x", "_save": "Save"})
    assert LockRow.objects.get().owner == "web-1:211:MainThread"


def test_the_address_of_a_row_leads_to_it_in_the_list():
    lock("a/b_c?d&e")
    response = root().get(f"{LOCKS}a_2Fb_5Fc_3Fd_26e/change/", follow=True)
    assert keys(text_of(response)) == ["a/b_c?d&amp;e"]


@pytest.mark.parametrize("text", [*HOSTILE, "\U0001f469" * 60, "x" * 255])
def test_hostile_keys_and_owners_are_text(text):
    lock(text[:255], owner=text)
    MutexRow.objects.create(lock_key=text[:255])
    client = root()
    for path in (LOCKS, MUTEXES):
        page = text_of(client.get(path))
        assert len(keys(page)) == 1
        assert "<script>alert" not in page
        assert "\u202e" not in page
        assert Inline(page).found == []
        assert [tag for tag, attrs in Inline(page).tags if tag == "img" and attrs.get("src") == "x"] == []


def test_a_search_for_nul_breaks_nothing():
    client = root()
    for path in (LOCKS, MUTEXES):
        assert "Null characters are not allowed" in text_of(client.get(path, {"q": "a\x00b"}))


@pytest.mark.parametrize("path", [LOCKS, MUTEXES])
def test_the_lists_cost_the_same_with_many_rows(path):
    client, counts = root(), []
    for numbers in (range(3), range(3, 300)):
        plain = {"fence": 1, "owner": "o", "expires_at": "2030-01-01T00:00:00Z"}
        LockRow.objects.bulk_create(LockRow(lock_key=f"k{number}", **plain) for number in numbers)
        MutexRow.objects.bulk_create(MutexRow(lock_key=f"k{number}") for number in numbers)
        client.get(path)
        with CaptureQueriesContext(connection) as captured:
            page = text_of(client.get(path))
        counts.append(len(sent(captured)))
        assert len(keys(page)) <= 50
        for sql in sent(captured):
            assert "OFFSET" not in sql
            assert "COUNT(" not in sql or f"LIMIT {readonly.COUNT_CAP}" in sql
    assert counts[0] == counts[1] <= 4

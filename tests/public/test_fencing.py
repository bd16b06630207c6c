"""FencedModel: what a holder writes late is refused by the row itself."""

import pytest
from django.db import IntegrityError, transaction

from jobqueue import current_job, enqueue
from jobqueue.exceptions import InvalidType, InvalidValue, StaleFence
from jobqueue.locks import lease_lock
from jobqueue.transitions import claim
from tests.app.models import Account
from tests.factories import expire as expire_job
from tests.locks.helpers import expire
from tests.races.actors import Actor, holding
from tests.settings import VENDOR

#: in a transaction that is rolled back, which is fast; and with real commits, for those who have company
plain, real = pytest.mark.django_db, pytest.mark.django_db(transaction=True)


@pytest.fixture
def account():
    return Account.objects.create(owner="ann", balance=1)


def stored(account):
    found = Account.objects.get(pk=account.pk)
    return found.balance, found.fence


@plain
def test_a_newer_and_the_same_fence_write_an_older_one_does_not(account):
    rows = Account.objects.filter(owner="ann")
    assert rows.fenced_update(5, balance=2) == 1
    assert rows.fenced_update(5, balance=3) == 1
    with pytest.raises(StaleFence, match=r"fence 4 is older than 5"):
        rows.fenced_update(4, balance=9)
    assert stored(account) == (3, 5)


@plain
def test_of_several_rows_all_are_written_or_none(account):
    Account.objects.create(owner="bob").fenced_save(9)
    with pytest.raises(StaleFence):
        Account.objects.all().fenced_update(5, balance=7)
    assert stored(account) == (1, 0)
    assert Account.objects.all().fenced_update(9, balance=7) == 2


@plain
def test_no_row_at_all_is_none_written(account):
    assert Account.objects.filter(owner="nobody").fenced_update(5, balance=2) == 0


@plain
def test_a_holder_that_was_overtaken_cannot_write(account):
    late = lease_lock("ann", 60).acquire()
    expire("ann")
    with lease_lock("ann", 60) as fresh:
        account.balance = 5
        account.fenced_save(fresh)
    with pytest.raises(StaleFence, match="somebody else went on"):
        Account.objects.filter(pk=account.pk).fenced_update(late, balance=9)
    account.balance = 9
    with pytest.raises(StaleFence):
        account.fenced_save(late)
    assert stored(account) == (5, fresh.fence)
    assert account.fence == fresh.fence


@plain
def test_a_jobs_fence_plugs_in(account):
    from jobqueue.context.job_context import JobContext, JobScope

    enqueue("q", 1)
    [stale] = claim("q", worker="a")
    expire_job(stale)
    from jobqueue.transitions import reap

    assert reap().requeued == 1
    [fresh] = claim("q", worker="b")
    with JobScope(JobContext(fresh)):
        assert Account.objects.all().fenced_update(current_job(), balance=5) == 1
    with JobScope(JobContext(stale)), pytest.raises(StaleFence):
        Account.objects.all().fenced_update(current_job(), balance=9)
    assert stored(account) == (5, 2)
    assert Account.objects.all().fenced_update(fresh, balance=6) == 1


@plain
def test_an_ordinary_save_of_an_old_instance_does_not_bring_an_old_fence_back(account):
    Account.objects.filter(pk=account.pk).fenced_update(5, balance=2)
    account.balance = 3
    account.save()
    assert stored(account) == (3, 5)
    account.refresh_from_db()
    account.fenced_save(6)
    account.save()
    assert stored(account) == (3, 6)


@plain
def test_a_fenced_save_is_a_save(account):
    before = account.changed_at
    account.balance, account.owner = 2, "not written"
    account.fenced_save(5, update_fields=["balance", "changed_at"])
    found = Account.objects.get()
    assert (found.owner, found.balance, found.fence) == ("ann", 2, 5)
    assert found.changed_at > before
    fresh = Account(owner="new")
    fresh.fenced_save(7)
    assert stored(fresh) == (0, 7)


@pytest.mark.parametrize("fence", [None, "5", 5.0, True, object()])
def test_something_without_a_fence_is_refused_before_the_database_is_asked(fence):
    with pytest.raises(InvalidType):
        Account.objects.all().fenced_update(fence, balance=9)


@pytest.mark.parametrize("fence", [0, -1, 2**63])
def test_a_number_that_is_no_fence_is_refused_before_the_database_is_asked(fence):
    with pytest.raises(InvalidValue):
        Account(owner="ann").fenced_save(fence)


@real
@pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has one writer")
@pytest.mark.parametrize("how", ["update", "save"])
def test_whoever_comes_while_a_newer_holder_writes_waits_and_is_refused(account, how):
    def late():
        if how == "save":
            return Account(pk=account.pk, owner="late").fenced_save(4)
        return Account.objects.filter(pk=account.pk).fenced_update(4, balance=9)

    with holding(lambda: Account.objects.filter(pk=account.pk).fenced_update(5, balance=2)):
        writer = Actor(late)
        assert writer.is_blocked()
    assert isinstance(writer.outcome(), StaleFence)
    assert stored(account) == (2, 5)


@plain
def test_a_refusal_leaves_the_callers_transaction_usable(account):
    account.fenced_save(5)
    with transaction.atomic():
        with pytest.raises(StaleFence):
            Account.objects.all().fenced_update(4, balance=9)
        Account.objects.create(owner="bob")
    assert Account.objects.count() == 2


@real
@pytest.mark.skipif(VENDOR == "sqlite", reason="one writer at a time: nobody comes in between")
@pytest.mark.parametrize(("newer", "owner"), [(7, "newer"), (3, "older")])
def test_a_row_that_is_made_between_the_look_and_the_save_keeps_the_newer_fence(monkeypatch, newer, owner):
    save, others = Account.save, [Account(pk=1, owner="newer")]

    def after_others(account, **options):
        if account.owner == "older" and others:
            Actor(others.pop().fenced_save, newer).result()
        save(account, **options)

    monkeypatch.setattr(Account, "save", after_others)
    outcome = Actor(Account(pk=1, owner="older").fenced_save, 5).outcome()
    found = Account.objects.get(pk=1)
    assert (found.owner, found.fence) == (owner, max(newer, 5))
    assert isinstance(outcome, StaleFence) == (newer > 5)


@plain
def test_a_duplicate_of_another_column_is_let_out():
    Account.objects.create(pk=1)
    with pytest.raises(IntegrityError), transaction.atomic():
        Account(pk=1).fenced_save(1, force_insert=True)

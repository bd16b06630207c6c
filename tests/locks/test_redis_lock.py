"""redis_lock(): redis-py's lock with the manners of the others."""

import asyncio
import os
import signal
import sys
import time

import pytest
from asgiref.sync import async_to_sync
from django.core.exceptions import ImproperlyConfigured
from redis import Redis
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeout

from jobqueue.exceptions import InvalidValue, LockLost, LockNotAcquired, LockNotHeld
from jobqueue.locks import redis as redis_module
from jobqueue.locks import redis_lock
from jobqueue.locks.redis import FENCE_PREFIX, PREFIX, _client
from tests.locks.helpers import astay
from tests.marks import finding
from tests.patience import patient, wait_until
from tests.races.actors import all_at_once
from tests.settings import VENDOR

pytestmark = pytest.mark.skipif(VENDOR != "sqlite", reason="the database has no part in it, so once is enough")


@pytest.fixture
def client(redis_url, settings):
    """The server, emptied."""
    settings.JOBQUEUE = {"REDIS_URL": redis_url}
    with Redis.from_url(redis_url) as found:
        found.flushdb()
        yield found
    _client.cache_clear()


def held(ttl_seconds=60):
    return redis_lock("k", ttl_seconds, 0).acquire()


def test_a_block_holds_it_and_gives_it_back(client):
    begun = time.monotonic()
    with redis_lock("k", 3600) as lock:
        of_key, of_lock = client.pttl(PREFIX + "k") / 1000, lock.remaining_seconds
        # The server counts whole milliseconds.
        assert min(of_key, of_lock) + (time.monotonic() - begun) + 0.002 > 3600
        assert max(of_key, of_lock) <= 3600
        with pytest.raises(LockNotAcquired, match="somebody else holds it"):
            held()
    assert not client.exists(PREFIX + "k")
    assert held().fence == lock.fence + 1


def test_the_fence_grows_also_when_the_server_has_forgotten_everything(client):
    fences = []
    for _ in range(3):
        for _ in range(3):
            with redis_lock("k", 60) as lock:
                fences.append(lock.fence)
        client.flushdb()
    assert fences == sorted(set(fences))


def test_one_that_ran_out_is_taken_over_with_a_higher_fence(client):
    late = held()
    client.delete(PREFIX + "k")
    fresh = held()
    assert fresh.fence > late.fence
    for verb in (late.renew, late.release):
        with pytest.raises(LockNotHeld):
            verb()
    assert client.get(PREFIX + "k")
    fresh.release()


def test_a_release_by_a_late_holder_changes_nothing(client):
    late = held()
    client.delete(PREFIX + "k")
    fresh = held()
    before = client.get(PREFIX + "k")
    with pytest.raises(LockLost):
        late.release()
    assert client.get(PREFIX + "k") == before
    fresh.release()


def test_whoever_runs_out_before_its_fence_was_given_is_no_holder(client, monkeypatch):
    slow = redis_lock("k", 60, 0)
    numbered = slow._next_fence

    def pause():
        client.delete(PREFIX + "k")
        fresh.append(held())
        return numbered()

    fresh = []
    monkeypatch.setattr(slow, "_next_fence", pause)
    with pytest.raises(LockNotAcquired):
        slow.acquire()
    assert client.get(FENCE_PREFIX + "k") is not None
    fresh[0].release()


def test_releasing_twice_says_so(client):
    lock = held()
    lock.release()
    with pytest.raises(LockNotHeld, match="released already"):
        lock.release()


def test_a_renewal_moves_the_end(client):
    lock = held(600)
    lock.renew(3600)
    assert 3_540_000 < client.pttl(PREFIX + "k") <= 3_600_000
    assert lock.remaining_seconds > 3540


def test_a_killed_holder_frees_it_within_its_ttl(client):
    held()
    assert 0 < client.pttl(PREFIX + "k") <= 60_000
    # As if most of it had passed.
    client.pexpire(PREFIX + "k", 300)
    assert redis_lock("k", 60, patient()).acquire().fence


def test_of_many_who_see_it_free_one_gets_it(client):
    outcomes = all_at_once([held] * 8)
    assert sum(isinstance(one, LockNotAcquired) for one in outcomes) == 7


def test_coroutines_wait_for_each_other(client):
    fences = []

    async def work():
        async with redis_lock("k", 60) as lock:
            await astay()
            await lock.arenew()
            fences.append(lock.fence)

    async def run():
        await asyncio.gather(*(work() for _ in range(4)))

    async_to_sync(run)()
    assert fences == sorted(set(fences))


def test_a_server_that_is_away_is_redis_pys_error(settings):
    settings.JOBQUEUE = {"REDIS_URL": "redis://127.0.0.1:1/0"}
    with pytest.raises(RedisError), redis_lock("k", 60):
        pytest.fail("there is no server")


def test_the_server_of_wakeup_is_used_where_there_is_no_other(settings):
    settings.JOBQUEUE = {"WAKEUP": "redis://127.0.0.1:1/0"}
    assert redis_lock("k", 60).name == "k"


def test_without_a_url_it_says_what_to_set(settings):
    settings.JOBQUEUE = {}
    with pytest.raises(ImproperlyConfigured, match=r"JOBQUEUE\['REDIS_URL'\]"):
        redis_lock("k", 60)


def test_without_redis_py_it_says_what_to_install(settings, monkeypatch):
    monkeypatch.setitem(sys.modules, "redis", None)
    settings.JOBQUEUE = {"REDIS_URL": "redis://127.0.0.1:2/0"}
    with pytest.raises(ImproperlyConfigured, match=r"pip install redis$"):
        redis_lock("k", 60)


def test_less_than_a_millisecond_is_refused(client):
    with pytest.raises(InvalidValue, match="milliseconds"):
        redis_lock("k", 0.0009)
    lock = held()
    with pytest.raises(InvalidValue, match="milliseconds"):
        lock.renew(0.0009)
    lock.release()


@finding("L16")
def test_the_counters_of_names_that_are_used_once_do_not_stay_for_ever(client):
    for number in range(20):
        with redis_lock(f"once-{number}", 60):
            pass
    lasting = [client.ttl(key) for key in client.scan_iter(FENCE_PREFIX + "*")]
    assert len(lasting) == 20
    assert all(3 * 86_400 < seconds <= 7 * 86_400 for seconds in lasting)


def test_a_counter_outlives_a_lock_of_any_length(client):
    with redis_lock("k", 30 * 86_400) as lock:
        assert client.ttl(FENCE_PREFIX + "k") > 30 * 86_400
        client.delete(FENCE_PREFIX + "k", PREFIX + "k")
        with redis_lock("k", 60) as fresh:
            assert fresh.fence > lock.fence
        client.set(PREFIX + "k", lock._entries.find().token, px=60_000)


@finding("M11")
def test_an_acquire_whose_answer_is_lost_leaves_no_lock_behind(client, monkeypatch):
    lock = redis_lock("k", 60, 0)
    command = Redis.execute_command
    cut = []

    def cut_once(self, *words, **options):
        answer = command(self, *words, **options)
        if words[0] == "SET" and not cut:
            cut.append(words)
            raise RedisTimeout("the answer was lost")
        return answer

    monkeypatch.setattr(Redis, "execute_command", cut_once)
    with pytest.raises(RedisTimeout):
        lock.acquire()
    assert cut
    assert held().fence


@finding("M11")
def test_a_lock_that_the_server_granted_when_it_woke_up_is_ended_by_the_next_try(client, redis_server, monkeypatch):
    monkeypatch.setattr("jobqueue.locks.redis.WAIT_SECONDS", patient(0.2))
    redis_module._client.cache_clear()
    held().release()
    pid = int(client.info("server")["process_id"])
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(RedisError):
            redis_lock("k", 60, 0).acquire()
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_until(lambda: client.ping(), what="the server")
    # Granted to nobody, or to the one that gave up.
    client.set(PREFIX + "beside", "1")
    assert redis_lock("k", 60, 0).acquire().fence

"""redis_lock() and wake-ups on a server that an entry of CACHES names."""

import sys
from types import ModuleType

import pytest
from django.core.cache import caches
from django.core.cache.backends.base import BaseCache
from redis import BlockingConnectionPool, Redis, SSLConnection
from redis.exceptions import AuthenticationError

from jobqueue import checks, wakeup
from jobqueue.exceptions import WrongSettings
from jobqueue.locks import redis_lock
from jobqueue.locks.redis import PREFIX
from jobqueue.wakeup import notifiers as redis_notifier
from jobqueue.wakeup.redis_client import connect
from tests.patience import patient
from tests.settings import VENDOR

pytestmark = pytest.mark.skipif(VENDOR != "sqlite", reason="the database has no part in it, so once is enough")
REDIS = "django.core.cache.backends.redis.RedisCache"
NOBODY = "redis://127.0.0.1:1/0"
PASSWORD = "p w@d/:"


@pytest.fixture(autouse=True)
def patient_notifier(monkeypatch):
    """On a busy machine the server takes its time."""
    monkeypatch.setattr(redis_notifier, "WAIT_SECONDS", 30)


def third(url):
    """The URL of another database of the server."""
    return f"{url.removesuffix('/0')}/3"


@pytest.fixture
def guarded(redis_url):
    """A client of the server, which wants a password meanwhile; its database 3 is empty."""
    with Redis.from_url(redis_url) as opener:
        opener.config_set("requirepass", PASSWORD)
        with Redis.from_url(third(redis_url), password=PASSWORD) as client:
            client.flushdb()
            yield client
        opener.execute_command("AUTH", PASSWORD)
        opener.config_set("requirepass", "")


@pytest.fixture
def entry(settings):
    """entry(LOCATION, **OPTIONS): CACHES has it as "locks", and jobqueue uses it for locks and wake-ups."""

    def make(location, backend=REDIS, **options):
        settings.CACHES = {
            "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
            "locks": {"BACKEND": backend, "LOCATION": location, "OPTIONS": options},
        }
        settings.JOBQUEUE = {"REDIS_URL": "cache:locks", "WAKEUP": "cache:locks"}

    return make


def connection_of(place="cache:locks"):
    """The pool that a client gets."""
    return connect(place, 1.0, "X").connection_pool


def problems():
    return [(found.id, found.msg) for found in checks.check_settings()]


def test_a_lock_and_a_wakeup_use_the_server_and_password_of_the_cache(guarded, entry, redis_url):
    entry(third(redis_url), password=PASSWORD)
    assert problems() == []
    with redis_lock("of caches", 60) as lock:
        assert guarded.exists(PREFIX + "of caches")
        assert lock.fence
    subscription = wakeup.notifier_of("default").subscribe()
    try:
        subscription.receive(patient())
        wakeup.notifier_of("default").notify("mail")
        assert subscription.receive(patient()) == ["mail"]
    finally:
        subscription.close()


def test_without_its_password_the_error_is_redis_pys(guarded, entry, redis_url):
    entry(redis_url)
    with pytest.raises(AuthenticationError), redis_lock("of caches", 60):
        pytest.fail("no password was given")


@pytest.mark.parametrize("join", [list, ",".join, ";".join], ids=["list", "comma", "semicolon"])
def test_of_several_locations_the_first_one_counts(redis_url, entry, join):
    entry(join([redis_url, NOBODY]))
    with redis_lock("first", 60) as lock:
        assert lock.fence


def test_a_listener_takes_no_connection_of_the_cache(redis_url, entry):
    entry(redis_url, max_connections=1)
    subscription = wakeup.notifier_of("default").subscribe()
    try:
        caches["locks"].set("k", 1)
        assert caches["locks"].get("k") == 1
        with redis_lock("of caches", 60), redis_lock("also of caches", 60):
            caches["locks"].delete("k")
    finally:
        subscription.close()


def test_a_changed_entry_counts_at_once(redis_url, entry):
    entry(NOBODY)
    redis_lock("of caches", 60)
    entry(redis_url)
    with redis_lock("of caches", 60) as lock:
        assert lock.fence


def test_the_options_of_tls_and_the_pool_class_reach_the_connection(entry):
    entry(
        "rediss://user:secret@h:6380/2",
        ssl_ca_certs="/ca.pem", ssl_cert_reqs="required", pool_class="redis.BlockingConnectionPool", timeout=patient(),
    )  # fmt: skip
    pool = connection_of()
    assert isinstance(pool, BlockingConnectionPool)
    assert pool.connection_class is SSLConnection
    given = pool.connection_kwargs
    assert (given["ssl_ca_certs"], given["ssl_cert_reqs"], given["db"]) == ("/ca.pem", "required", 2)
    assert (given["username"], given["password"]) == ("user", "secret")


def test_the_waits_and_formats_of_the_cache_do_not_count(entry):
    entry("redis://h", socket_timeout=60, socket_connect_timeout=60, decode_responses=True, max_connections=1)
    given = connection_of().connection_kwargs
    assert (given["socket_timeout"], given["socket_connect_timeout"]) == (1.0, 1.0)
    assert "decode_responses" not in given


@pytest.fixture
def django_redis(monkeypatch):
    """The class by which django-redis is known, without its package."""
    module = ModuleType("django_redis.cache")
    module.RedisCache = type("RedisCache", (BaseCache,), {"__module__": "django_redis.cache"})
    monkeypatch.setitem(sys.modules, "django_redis", ModuleType("django_redis"))
    monkeypatch.setitem(sys.modules, "django_redis.cache", module)
    return "django_redis.cache.RedisCache"


def test_options_of_django_redis_are_understood(guarded, entry, redis_url, django_redis):
    kwargs = {"max_connections": 1, "health_check_interval": 30}
    options = {"CLIENT_CLASS": "django_redis.client.DefaultClient", "CONNECTION_POOL_KWARGS": kwargs}
    entry([redis_url, NOBODY], django_redis, PASSWORD=PASSWORD, **options)
    with redis_lock("of caches", 60) as lock:
        assert lock.fence
    assert connection_of().connection_kwargs["health_check_interval"] == 30
    entry("redis://service/0", django_redis, SENTINELS=[("h", 26379)])
    assert "finds its server by Sentinel" in problems()[0][1]


@pytest.mark.parametrize("key", ["WAKEUP", "REDIS_URL"])
@pytest.mark.parametrize(
    ("alias", "words"),
    [
        ("lock", "CACHES has no 'lock' (did you mean 'locks'?)"),
        ("default", "CACHES['default'] is not on Redis, its BACKEND is 'django.core.cache"),
        ("locks", "the first LOCATION of CACHES['locks'] is no redis://, rediss:// or unix:// URL"),
    ],
)
def test_a_wrong_alias_is_refused_by_check_and_at_use(entry, settings, key, alias, words):
    entry("http://:hunter2@h")
    settings.JOBQUEUE = {key: f"cache:{alias}"}
    ((code, text),) = problems()
    assert code == "jobqueue.E006"
    assert text.startswith(f"JOBQUEUE['{key}'] = 'cache:{alias}': {words}")
    assert ". Name an alias of CACHES with" in text
    assert "hunter2" not in text
    with pytest.raises(WrongSettings) as refused:
        redis_lock("of caches", 60)
    assert str(refused.value) == text


@pytest.mark.parametrize(
    ("backend", "options", "words"),
    [
        ("no.such.Cache", {}, "names 'no.such.Cache', which cannot be imported"),
        (REDIS, {"pool_class": "redis.sentinel.SentinelConnectionPool"}, "asks Sentinel for its server"),
    ],
)
def test_what_cannot_be_used_says_why(entry, backend, options, words):
    entry("redis://h", backend, **options)
    assert {code for code, _ in problems()} == {"jobqueue.E006"}
    assert all(words in text for _, text in problems())


def test_another_cache_under_the_name_has_another_notifier_and_other_settings_leave_it(entry, settings):
    entry(NOBODY)
    first = redis_notifier.RedisNotifier.at("cache:locks")
    settings.USE_TZ = settings.USE_TZ
    assert redis_notifier.RedisNotifier.at("cache:locks") is first
    entry(third(NOBODY))
    assert redis_notifier.RedisNotifier.at("cache:locks") is not first

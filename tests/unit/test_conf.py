"""The JOBQUEUE setting: every key known, every value checked, every problem listed."""

import dataclasses

import pytest
from django.core.exceptions import ImproperlyConfigured

from jobqueue.conf import Settings, load, read
from jobqueue.failures.dependencies import DependencySettings


def problems(**given):
    return read(given)[1]


def test_nothing_given_gives_the_documented_defaults():
    found, wrong = read({})
    assert wrong == []
    assert (found.database, found.lease_seconds, found.renew_seconds) == ("default", 60, 15)
    assert (found.max_attempts, found.dedupe_seconds) == (25, 86400)


@pytest.mark.parametrize("key", ["LEASE", "lease_seconds", "Lease_Seconds", "", 5, None])
def test_an_unknown_key_is_named(key):
    assert repr(key) in problems(**{}) or repr(key) in read({key: 1})[1][0]


@pytest.mark.parametrize("raw", [None, [], "x", 5])
def test_a_setting_that_is_no_dict_is_named(raw):
    assert "dict" in read(raw)[1][0]


BAD = [
    ("LEASE_SECONDS", [0, -1, "60", None, True, float("nan"), float("inf"), 10**9, [60]]),
    ("HEARTBEAT_SECONDS", [0, -1, "x", True, float("nan")]),
    ("MAX_ATTEMPTS", [0, -1, 1.5, "3", None, True, 2**31]),
    ("MAX_PAYLOAD_BYTES", [0, -1, 1.5, "1M", None]),
    ("MAX_RESULT_BYTES", [0, None]),
    ("DEDUPE_SECONDS", [-1, "1d", True, float("nan")]),
    ("BACKOFF_BASE_SECONDS", [-1, "5", None]),
    ("BACKOFF_FACTOR", [0.5, 0, -1, 1001, None, "2"]),
    ("BACKOFF_CAP_SECONDS", [0, -1, None]),
    ("DATABASE", ["", None, 5]),
    ("QUEUES", [None, [], "mail"]),
    ("WAKEUP", [None, True, "", "on", "AUTO", "notify", "redis:", "redis://", "http://h/", "redis://h:x", "unix://"]),
    ("LOG_LINES", [-1, 1.5, None, "x", True, 10_001]),
    ("WORKER_SILENT_SECONDS", [0, None, "x"]),
]


@pytest.mark.parametrize(("key", "value"), [(k, v) for k, values in BAD for v in values], ids=str)
def test_a_bad_value_is_named_with_its_key(key, value):
    assert any(key in text for text in problems(**{key: value}))


def test_an_endless_dedupe_hold_is_refused_where_the_database_cannot_count_it():
    assert problems(DEDUPE_SECONDS=float("inf"))


def test_a_heartbeat_that_could_lose_its_lease_is_refused():
    assert "3 x" in problems(LEASE_SECONDS=30, HEARTBEAT_SECONDS=10)[0]
    assert problems(LEASE_SECONDS=31, HEARTBEAT_SECONDS=10) == []


def test_dedupe_may_last_until_pruned():
    found, wrong = read({"DEDUPE_SECONDS": None})
    assert wrong == []
    assert found.dedupe_seconds is None


def test_a_queue_overrides_what_it_names():
    found, wrong = read({"MAX_ATTEMPTS": 7, "QUEUES": {"mail": {"MAX_ATTEMPTS": 3}, "slow": {"LEASE_SECONDS": 600}}})
    assert wrong == []
    assert [found.queue_max_attempts(q) for q in ("mail", "slow", "other")] == [3, 7, 7]
    assert [found.queue_lease_seconds(q, 60) for q in ("mail", "slow", "other")] == [60, 600, 60]


@pytest.mark.parametrize(
    "queues",
    [{"mail": None}, {5: {}}, {"mail": {"LEASE": 5}}, {"mail": {"LEASE_SECONDS": 0}}, {"mail": {"MAX_ATTEMPTS": "3"}}],
)
def test_a_bad_queue_entry_is_named(queues):
    assert "QUEUES" in problems(QUEUES=queues)[0]


@pytest.mark.parametrize(
    "value",
    [
        "auto",
        "off",
        "redis://h",
        "rediss://u:p@h:6380/1?x=y",
        "unix:///run/redis.sock",
        "redis://[::1]:6379",
        "cache:a",
    ],
)
def test_wakeup_is_a_word_or_a_redis_server(value):
    assert problems(WAKEUP=value) == []


@pytest.mark.parametrize("key", ["WAKEUP", "REDIS_URL"])
def test_a_wrong_url_is_not_repeated_with_its_password(key):
    assert "hunter2" not in problems(**{key: "reddis://:hunter2@host"})[0]


@pytest.mark.parametrize(
    ("value", "count"),
    [(None, 0), ("redis://h", 0), ("cache:locks", 0), ("cache:", 1), ("auto", 1), ("", 1), (6379, 1)],
)
def test_the_server_of_redis_locks_is_a_url_or_a_cache(value, count):
    assert len(problems(REDIS_URL=value)) == count


def test_all_problems_are_listed_at_once():
    assert len(problems(LEASE=1, MAX_ATTEMPTS=0, DATABASE="")) == 3


def test_a_wrong_value_leaves_the_others_as_they_are_set():
    found, wrong = read({"LEASE": 1, "DATABASE": "jobs", "MAX_ATTEMPTS": 0, "QUEUES": {"a": {"LEASE_SECONDS": 0}}})
    assert len(wrong) == 3
    assert (found.database, found.max_attempts, found.queues["a"].lease_seconds) == ("jobs", 25, None)


@pytest.mark.parametrize(
    ("key", "nearest"),
    [("LEASE_SECOND", "LEASE_SECONDS"), ("lease_seconds", "LEASE_SECONDS"), ("LEASE", "LEASE_SECONDS"), ("XYZ", None)],
)
def test_an_unknown_key_comes_with_the_nearest_known_one(key, nearest):
    (said,) = problems(**{key: 5})
    assert said == f"unknown key {key!r}" + (f" (did you mean {nearest!r}?)" if nearest else "")


def test_load_refuses_a_wrong_setting_and_reads_a_changed_one(settings):
    settings.JOBQUEUE = {"MAX_ATEMPTS": 3}
    with pytest.raises(ImproperlyConfigured, match="MAX_ATEMPTS"):
        load()
    settings.JOBQUEUE = {"MAX_ATTEMPTS": 3}
    assert load().max_attempts == 3


def test_settings_cannot_be_changed_by_accident():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().max_attempts = 5


def test_the_settings_of_dependencies_take_durations_and_have_defaults():
    raw = {"stripe": {"FAILURES": 3, "WITHIN": "1m", "PROBE": 0.5, "RETRY_SHARE": 0.1}, "github": {}}
    found, problems = read({"DEPENDENCIES": raw})
    assert problems == []
    assert found.dependencies == {"stripe": DependencySettings(3, 60.0, 0.5, 0.1), "github": DependencySettings()}


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ({"stripe": {"RETRY_SHARE": 1}}, "DEPENDENCIES['stripe']: RETRY_SHARE must be a share from 0 to below 1"),
        ({"stripe": {"RETRY_SHARE": "a"}}, "DEPENDENCIES['stripe']: RETRY_SHARE must be a number, is 'a'"),
        ({"stripe": {"RETRY_SHARES": 1}}, "unknown key 'RETRY_SHARES' (did you mean 'RETRY_SHARE'?)"),
        ({"stripe": {"FAILURES": 0}}, "DEPENDENCIES['stripe']: FAILURES is 0"),
        ({"stripe": {"WITHIN": "soon"}}, "DEPENDENCIES['stripe']: WITHIN: 'soon' is not a duration"),
        ({"stripe": {"PROBE": -1}}, "DEPENDENCIES['stripe']: PROBE is -1"),
        ({"stripe": 3}, "DEPENDENCIES['stripe'] must be a dict, is int"),
        ({"a b": {}}, "DEPENDENCIES: dependency 'a b' must be 1 to 64 bytes"),
        ([], "DEPENDENCIES must be a dict"),
    ],
)
def test_wrong_settings_of_dependencies_are_named(raw, said):
    _, (problem,) = read({"DEPENDENCIES": raw})
    assert said in problem

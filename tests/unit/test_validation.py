"""What may be stored as a queue name, a key, a number, an instant."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from django.utils import timezone as django_timezone

from jobqueue.base import validation
from jobqueue.exceptions import InvalidType, InvalidValue, JobQueueError
from tests.marks import finding

CONTROLS = ["\x00", "\x1f", "\n", "\t", "\x7f", "\x80", "\x9f"]


@pytest.mark.parametrize(
    "name", ["a", "mail", "a-b", "a b", "A", "é", "큐", "😀", "a" * 64, "é" * 32, "x'; DROP TABLE y", "%s", "a."]
)
def test_a_queue_name_of_1_to_64_bytes_is_taken_as_it_is(name):
    assert validation.check_queue(name) == name


@pytest.mark.parametrize(
    "name",
    ["", "a" * 65, "é" * 33, "-a", "-", "a,b", "a:b", "*", "a*", "\ud800"] + [f"a{c}b" for c in CONTROLS],
)
def test_a_bad_queue_name_is_refused(name):
    with pytest.raises(InvalidValue, match="queue") as caught:
        validation.check_queue(name)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("name", [None, 1, b"mail", ["mail"]])
def test_a_queue_name_of_another_type_is_a_type_error(name):
    with pytest.raises(InvalidType, match="queue") as caught:
        validation.check_queue(name)
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, JobQueueError)


def test_a_queue_error_names_the_limit():
    with pytest.raises(InvalidValue, match="64"):
        validation.check_queue("q" * 65)


@pytest.mark.parametrize(
    ("key", "raw"),
    [
        ("a", b"a"),
        ("é", "é".encode()),
        (b"\x00\xff", b"\x00\xff"),
        ("a ", b"a "),
        ("k" * 64, b"k" * 64),
        (b"k" * 64, b"k" * 64),
    ],
)
def test_a_str_key_is_its_utf8_and_a_bytes_key_is_itself(key, raw):
    assert validation.check_key(key) == raw


@pytest.mark.parametrize("key", ["", b"", "k" * 65, b"k" * 65, "é" * 33, "\ud800"])
def test_a_key_that_is_empty_too_long_or_not_utf8_is_refused(key):
    with pytest.raises(InvalidValue, match="dedupe_key"):
        validation.check_key(key)


@pytest.mark.parametrize("key", [1, None, ["a"], object()])
def test_a_key_of_another_type_is_a_type_error(key):
    with pytest.raises(InvalidType, match="dedupe_key"):
        validation.check_key(key)


def test_a_key_error_names_the_limit():
    with pytest.raises(InvalidValue, match="64"):
        validation.check_key("k" * 65)


@pytest.mark.parametrize("value", [True, 1.0, "1", None])
def test_a_number_of_another_type_is_a_type_error(value):
    with pytest.raises(InvalidType, match="priority"):
        validation.check_int(value, "priority", 0)


@pytest.mark.parametrize("value", [-1, 11, 2**31, -(2**63)])
def test_a_number_outside_its_range_is_refused_with_both_limits(value):
    with pytest.raises(InvalidValue, match=r"limit is .* 0 to 10"):
        validation.check_int(value, "limit", 0, 10)


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), 10**9])
def test_seconds_that_make_no_sense_are_refused(value):
    with pytest.raises(InvalidValue, match="lease_seconds"):
        validation.check_seconds(value, "lease_seconds")


def test_zero_seconds_are_taken_where_they_make_sense():
    assert validation.check_seconds(0, "delay_seconds", zero=True) == 0


@pytest.mark.parametrize("value", ["1", None, True, timedelta(1)])
def test_seconds_of_another_type_are_a_type_error(value):
    with pytest.raises(InvalidType):
        validation.check_seconds(value, "lease_seconds")


def test_an_aware_instant_becomes_utc():
    east = datetime(2026, 1, 1, 9, tzinfo=timezone(timedelta(hours=9)))
    assert validation.check_instant(east) == datetime(2026, 1, 1, tzinfo=UTC)
    assert validation.check_instant(east).utcoffset() == timedelta(0)


@pytest.mark.parametrize(
    "value",
    [
        datetime(2026, 1, 1),
        datetime.min,
        datetime.max.replace(tzinfo=UTC),
        datetime.min.replace(tzinfo=UTC),
        datetime.max.replace(tzinfo=timezone(timedelta(hours=-12))),
        datetime.min.replace(tzinfo=timezone(timedelta(hours=12))),
    ],
)
def test_a_naive_or_unstorable_instant_is_refused(value):
    with pytest.raises(InvalidValue, match="run_at"):
        validation.check_instant(value)


@pytest.mark.parametrize("value", ["2026-01-01", 0, None, timedelta(1), datetime(2026, 1, 1).date()])
def test_an_instant_of_another_type_is_a_type_error(value):
    with pytest.raises(InvalidType, match="run_at"):
        validation.check_instant(value)


@pytest.mark.parametrize("job_id", [1, "1", "0042", 2**63 - 1])
def test_a_job_id_is_an_int_or_its_decimal_text(job_id):
    assert validation.check_id(job_id) == int(job_id)


@pytest.mark.parametrize("job_id", ["", "x", "1x", "-1", "1.0", " 1", "\u0661", "9" * 21, None, 1.0, True, b"1", [1]])
def test_anything_else_is_not_a_job_id(job_id):
    with pytest.raises((InvalidType, InvalidValue)):
        validation.check_id(job_id)


@pytest.mark.parametrize("name", ["", "w" * 129, "a\nb", "a\x00b", "\ud800"])
def test_a_worker_name_that_cannot_be_stored_or_logged_is_refused(name):
    with pytest.raises(InvalidValue):
        validation.check_worker(name)


@finding("R-F13")
def test_the_advice_for_a_naive_time_holds_without_time_zones_in_django(settings):
    settings.USE_TZ = False
    with pytest.raises(InvalidValue, match=r"datetime\.now\(UTC\)"):
        validation.check_instant(django_timezone.now())
    assert validation.check_instant(datetime.now(UTC)).utcoffset() == timedelta(0)
    assert validation.check_instant(django_timezone.make_aware(datetime.now())).utcoffset() == timedelta(0)

"""The JSON that every database gives back unchanged, and the refusals that name path and limit."""

import json
from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from uuid import UUID

import pytest
from django.core.files.base import ContentFile
from django.http import HttpRequest
from django.utils.functional import SimpleLazyObject
from django.utils.safestring import mark_safe
from django.utils.translation import gettext_lazy

from jobqueue.base.payload import decode, encode, normalized
from jobqueue.exceptions import PayloadError, PayloadTooLarge
from tests.app.models import Account

LIMIT = 1_048_576


def coded(value, max_bytes=LIMIT):
    return encode(value, max_bytes=max_bytes)


def nested(levels, leaf=1):
    for _ in range(levels):
        leaf = [leaf]
    return leaf


GOOD = [
    None,
    True,
    False,
    0,
    -1,
    1.5,
    -0.0,
    1e308,
    5e-324,
    "",
    "text",
    "é",
    "큐",
    "😀",
    "\x01\x1f",
    "\u2028",
    "'\"\\%s{{x}}",
    2**63 - 1,
    -(2**63),
    2**64 - 1,
    [],
    {},
    [[]],
    {"": ""},
    {"a": {"b": [1, None, {"c": "d"}]}},
    "<script>",
    nested(30),
]


@pytest.mark.parametrize("value", GOOD, ids=lambda v: ascii(v)[:30])
def test_plain_json_comes_back_as_it_was(value):
    back = decode(coded(value))
    assert back == value
    assert type(back) is type(value)


def test_a_tuple_becomes_a_list():
    assert decode(coded({"a": (1, (2,))})) == {"a": [1, [2]]}


def test_a_dict_keeps_its_order():
    assert list(decode(coded(OrderedDict([("b", 1), ("a", 2)])))) == ["b", "a"]


def test_marked_safe_text_comes_back_as_plain_str():
    assert type(decode(coded(mark_safe("<b>")))) is str


CIRCLE: list = []
CIRCLE.append(CIRCLE)

BAD = [
    (float("nan"), "nan"),
    (float("inf"), "inf"),
    (float("-inf"), "inf"),
    ("a\x00b", "NUL"),
    ("\ud800", "surrogate"),
    ("ok \udfff", "surrogate"),
    (2**64, "2\\*\\*64"),
    (-(2**63) - 1, "2\\*\\*63"),
    (10**5000, "2\\*\\*64"),
    (b"raw", "bytes"),
    (bytearray(b"raw"), "bytearray"),
    (Decimal("1.5"), "Decimal"),
    (datetime(2026, 1, 1, tzinfo=UTC), "datetime"),
    (date(2026, 1, 1), "date"),
    (UUID(int=1), "UUID"),
    ({1, 2}, "set"),
    (object(), "object"),
    (1j, "complex"),
    (range(3), "range"),
    ((n for n in [1]), "generator"),
    (nested(31), "30"),
    ({1: "a"}, "int"),
    ({None: "a"}, "NoneType"),
    ({True: "a"}, "bool"),
    ({("a",): 1}, "tuple"),
    ({"a\x00": 1}, "NUL"),
    ({"\udc80": 1}, "surrogate"),
]


@pytest.mark.parametrize(("value", "words"), BAD, ids=[f"{i}-{w}" for i, (_, w) in enumerate(BAD)])
def test_what_some_database_would_refuse_or_change_is_refused_here(value, words):
    with pytest.raises(PayloadError, match=words) as caught:
        coded(value)
    assert isinstance(caught.value, (TypeError, ValueError))


@pytest.mark.parametrize(("value", "words"), BAD, ids=[f"{i}-{w}" for i, (_, w) in enumerate(BAD)])
def test_the_refusal_names_the_path(value, words):
    with pytest.raises(PayloadError, match=r"payload\['orders'\]\[1\]"):
        coded({"orders": ["fine", value]})


class Colour(Enum):
    RED = 1


@dataclass
class Point:
    x: int


INSTEAD = [
    (Account(pk=3), "an Account; pass its pk"),
    (SimpleLazyObject(lambda: Account(pk=3)), "an Account; pass its pk"),
    (Account.objects.all(), "QuerySet; pass a list of pks: list(queryset.values_list('pk', flat=True))"),
    (Account.objects, "; pass a list of pks"),
    (Account, "the class Account; pass its name"),
    (datetime(2026, 1, 1), "a datetime; pass its isoformat()"),
    (date(2026, 1, 1), "a date; pass its isoformat()"),
    (time(1), "a time; pass its isoformat()"),
    (timedelta(1), "a timedelta; pass its total_seconds()"),
    (Decimal(1), "a Decimal; pass str(...)"),
    (UUID(int=1), "a UUID; pass str(...)"),
    ({1}, "a set; pass list(...)"),
    (frozenset(), "a frozenset; pass list(...)"),
    ({}.keys(), "a dict_keys; pass list(...)"),
    (bytearray(b"x"), "a bytearray; pass base64.b64encode(...).decode()"),
    (Colour.RED, "a Colour; pass its value"),
    (Point(1), "a Point; pass dataclasses.asdict(...)"),
    (ValueError("x"), "a ValueError; pass str(...)"),
    (PurePath("x"), "; pass str(...)"),
    (gettext_lazy("yes"), "; pass str(...)"),
    (HttpRequest(), "HttpRequest; pass the values that the job needs"),
    (ContentFile(b"x"), "a ContentFile; pass the name under which it is stored"),
    (print, "; pass a string, a number, or a dict made from it"),
    (object(), "an object; pass a string, a number, or a dict made from it"),
]


@pytest.mark.parametrize(("value", "words"), INSTEAD, ids=[words[:20] for _, words in INSTEAD])
def test_the_refusal_names_the_argument_and_what_to_pass_instead(value, words):
    with pytest.raises(PayloadError) as caught:
        normalized([value], "args")
    assert str(caught.value).startswith("args[0] is ")
    assert words in str(caught.value)
    with pytest.raises(PayloadError) as caught:
        normalized({"items": ["a", {}, {"b": "c", "price": value}]}, "kwargs")
    assert str(caught.value).startswith("kwargs['items'][2]['price'] is ")
    with pytest.raises(PayloadError, match=r"^result\[0\] is .*; use "):
        encode([value], max_bytes=LIMIT, what="result")


def test_bytes_among_arguments_are_text_or_refused():
    assert normalized([b"ab", {b"k": 1}], "args") == ["ab", {"k": 1}]
    with pytest.raises(PayloadError, match=r"args\[0\] is bytes that are not UTF-8; pass base64"):
        normalized([b"\xff"], "args")


def test_a_key_that_is_no_string_is_refused_with_its_place():
    with pytest.raises(PayloadError, match=r"args\[0\] has the key 1 of type int; JSON keys are strings"):
        normalized([{1: 2}], "args")


def test_a_structure_that_holds_itself_is_refused():
    with pytest.raises((PayloadError, RecursionError)):
        coded(CIRCLE)


def test_depth_is_refused_long_before_pythons_own_limit():
    with pytest.raises(PayloadError, match="30"):
        coded(nested(100_000))


def test_a_dict_counts_as_a_level_too():
    with pytest.raises(PayloadError, match="30"):
        coded({"a": nested(30)})


@pytest.mark.parametrize("text", ["x" * 100, "é" * 50, "😀" * 25])
def test_the_limit_counts_bytes_as_stored(text):
    assert coded(text, max_bytes=102)
    with pytest.raises(PayloadTooLarge, match=r"102 bytes.* 101 .*MAX_PAYLOAD_BYTES"):
        coded(text, max_bytes=101)


def test_the_text_is_compact_and_strict_json():
    text = coded({"a": [1, 2], "é": "😀"})
    assert json.loads(text, parse_constant=pytest.fail) == {"a": [1, 2], "é": "😀"}
    assert ", " not in text
    assert ": " not in text


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, b"\xff", "nope"])
def test_stored_text_that_is_not_json_is_a_payload_error(text):
    with pytest.raises(PayloadError):
        decode(text)


def test_a_float_that_python_prints_short_comes_back_exactly():
    for number in (0.1, 1 / 3, 1e16, 123456789.123456789):
        assert decode(coded(number)) == number

"""Secrets in JSON are masked at any depth."""

from __future__ import annotations

import pytest
from django.test import override_settings

from jobqueue import conf
from jobqueue.masking import MASK, mask_text, mask_value
from tests.marks import finding


@pytest.mark.parametrize(
    "key", ["password", "apiKey", "X-Api-Key", "PASSWORD", "csrf_token", "card-number", "ssn", "cvc"]
)
def test_the_value_of_a_telling_key_is_masked(key):
    assert mask_value({"kwargs": {"a": [{key: "x"}, {key: {"b": 1}}], "n": 1}}) == {
        "kwargs": {"a": [{key: MASK}, {key: MASK}], "n": 1}
    }


@finding("O-M10")
@pytest.mark.parametrize(
    "value", [["--password", "hunter2"], ["password", "hunter2"], ["mysql", "--password", "hunter2", "shop"]]
)
def test_what_stands_beside_a_telling_name_in_a_list_is_masked(value):
    assert mask_value({"argv": value}) == {"argv": [MASK if item == "hunter2" else item for item in value]}


def test_a_list_of_names_stays():
    assert mask_value(["username", "password", "email"]) == ["username", "password", "email"]


def test_text_in_values_and_keys_is_searched_and_the_original_stays():
    value = {"args": ["password=x1", 5], "mysql://a:pw@db": True}
    assert mask_value(value) == {"args": [f"password={MASK}", 5], f"mysql://a:{MASK}@db": True}
    assert value == {"args": ["password=x1", 5], "mysql://a:pw@db": True}


def test_deep_nesting_is_masked():
    value: object = {"password": "x"}
    for _ in range(50_000):
        value = [value]
    found = mask_value(value)  # type: ignore[arg-type]
    while isinstance(found, list):
        found = found[0]
    assert found == {"password": MASK}


@pytest.mark.parametrize("value", [None, True, 3, 1.5, [], {}, {"secretary": "Kim", "password": None}])
def test_values_without_a_secret_stay(value):
    assert mask_value(value) == value


def test_a_project_adds_keys_and_patterns():
    with override_settings(JOBQUEUE={"MASK": {"KEYS": ["Patient-Id"], "PATTERNS": [r"ACME-\d+"]}}):
        assert mask_value({"patientId": 5, "note": "ACME-12"}) == {"patientId": MASK, "note": MASK}
        assert mask_text("patient_id=5") == f"patient_id={MASK}"


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        ({"PATTERNS": ["("]}, "is not a regular expression"),
        ({"PATTERNS": ["a*"]}, "must not match the empty text"),
        ({"KEYS": "password"}, "must be a list"),
        ({"KEYS": [3]}, "must be a str"),
        ({"KEY": []}, "unknown key"),
    ],
)
def test_a_wrong_setting_is_told(raw, problem):
    _, problems = conf.read({"MASK": raw})
    assert len(problems) == 1
    assert problem in problems[0]

"""Secrets in text are masked, and ordinary text stays as it is."""

from __future__ import annotations

import time

import pytest

from jobqueue.failures import storable
from jobqueue.masking import MASK, mask_tail, mask_text
from tests.marks import finding
from tests.masking.secrets import A40, MISSED, SECRETS

ORDINARY = [
    "shop.orders.tasks.send_receipt", "token bucket", "lock_token expired", "secretary: Kim", "author: Lee",
    "3f2b8c1e-7d4a-4f7e-9a55-0c1d2e3f4a5b", "2b6e38869cb5d58baeb0ca0fd39a22d1ad1fd3f4", "fingerprint 0f3c9a1b2c3d4e5f",
    'File "/srv/shop/auth/session.py", line 12, in login', "KeyError: 'password'", "max_tokens=4096", "token_count: 5",
    "ValueError: invalid token in line 3", "Basic authentication failed", "bearer of bad news", "job 4111111111111112",
    "2026-01-31 12:01:07.123456", "web-1:211:5f0c2a9e/1.1", "https://example.com:8080/a?b=1", "1769860867123456",
    "order-key=customer-12345678", "redis://cache:6379/0", "password=None", "password_changed_at=2026-01-31",
    "monkey=1 keyboard=2", "task-1234567890", "010-1234-5678", "session expired after 5 minutes", "sk-1",
    "auth-1:211:5f0c2a9e/1.1", "auth-worker-7d9f:211", "session:42", "refresh-token:1769860867123456",
    "https://registry.test:5000/@scope/name", "<secretary>Kim</secretary>", "['password', 'email', 'name']",
    "('user', 'kim')", "--queue mail --limit 5", "compass=3", "bypass: 1", "prompt_tokens=12", "1 passed, 2 failed",
]  # fmt: skip


def test_the_table_has_fifty_patterns():
    assert len(SECRETS) >= 50


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        pytest.param(*case, id=str(number), marks=[finding("O-M10")] if case in MISSED else [])
        for number, case in enumerate(SECRETS)
    ],
)
def test_a_secret_is_masked(text, secret):
    found = mask_text(f"before {text}\nafter")
    assert secret not in found
    assert MASK in found
    assert found.startswith("before ")
    assert mask_text(found) == found


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_text_stays(text):
    assert mask_text(text) == text


def test_the_text_around_a_secret_stays():
    assert mask_text("login(user='kim', password='x y', n=3)") == f"login(user='kim', password='{MASK}', n=3)"
    assert mask_text("mysql://kim:pw@db/shop") == f"mysql://kim:{MASK}@db/shop"


@pytest.mark.parametrize(
    "piece",
    ["a", "password=", 'password="', "a.b-", "://", "://:", "://a:b", "eyJ", "eyJaaaaaa.",
     "-----BEGIN PRIVATE KEY-----",
     "bearer ", "4111 ", "4", "\\", "'", "password=\\\"", "{", "key: ", "sk-", "ghp_", "a@", " \t", "x:=", "1-"],
)  # fmt: skip
def test_the_time_is_linear_in_the_length_of_hostile_text(piece):
    def seconds(size: int) -> float:
        text = piece * (size // len(piece))
        times = []
        for _ in range(2):
            begun = time.process_time()
            mask_text(text)
            times.append(time.process_time() - begun)
        return min(times)

    small = seconds(20_000)
    assert seconds(200_000) <= 25 * small + 0.05


@pytest.mark.parametrize(
    "text", ["session:a42", "session: 42", "auth=42", "pin:1234", "password:12345678", "token:42a"]
)
def test_what_is_no_id_after_a_colon_is_masked(text):
    assert MASK in mask_text(text)


def test_the_rest_of_a_secret_at_the_beginning_of_a_tail_is_left_out():
    text = "password=" + "s3cret" * 20 + "\nlast line: no funds"
    assert mask_tail(text[-60:], 60) == "...\nlast line: no funds"
    assert "s3cret" not in mask_tail(("password=" + "s3cret" * 20 + " declined")[-30:], 30)
    assert mask_tail("s3cret" * 5, 30) == "... "


def test_a_private_key_whose_beginning_was_cut_off_is_masked():
    text = "AAAA\nBBBB\n-----END PRIVATE KEY-----\nlast line"
    found = mask_tail(text, len(text))
    assert "BBBB" not in found
    assert found.endswith("-----END PRIVATE KEY-----\nlast line")


def test_a_tail_that_is_the_whole_text_is_not_cut():
    assert mask_tail("ValueError: no funds", 500) == "ValueError: no funds"


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("password='abc\ndef', n=1", f"password='{MASK}', n=1"),
        ('{"password": "abc\n  def"}', f'{{"password": "{MASK}"}}'),
        ('private_key="""\nabc\n"def"\n"""\nnext', f'private_key="{MASK}"\nnext'),
        ("credentials=(\n    'kim',\n    'abc',\n)\nnext", f"credentials={MASK}\nnext"),
        ("Set-Cookie: a=b credentials=('kim', 'abc') n", f"Set-Cookie: {MASK} n"),
    ],
)
def test_a_value_is_masked_to_its_closing_quote_or_bracket_also_over_line_breaks(text, masked):
    assert mask_text(text) == masked


def test_a_value_without_a_closing_quote_ends_with_its_line():
    text = "password='abc\n  File \"/srv/a.py\", line 3\nKeyError: 'name'"
    assert mask_text(text) == f"password='{MASK}\n  File \"/srv/a.py\", line 3\nKeyError: 'name'"


def test_the_rest_of_a_line_that_was_cut_is_left_out():
    text = storable("password=" + "s3cret" * 20_000 + "\nValueError: no funds")
    found = mask_text(text)
    assert "s3cret" not in found
    assert found.endswith("bytes left out ...\n...\nValueError: no funds")


def test_a_private_key_whose_middle_was_cut_out_is_masked():
    text = f"-----BEGIN PRIVATE KEY-----\nAAAA\n... 9 bytes left out ...\nBB\n{A40}\n-----END PRIVATE KEY-----\nnext"
    found = mask_text(text)
    assert A40 not in found
    assert "AAAA" not in found
    assert found.endswith("-----END PRIVATE KEY-----\nnext")


@pytest.mark.parametrize(
    "text", ["id 94111111111111111", "run 4111111111111111000001", "x4111111111111111", "1-4111111111111111"]
)
def test_the_number_of_a_card_within_a_longer_run_stays(text):
    assert mask_text(text) == text

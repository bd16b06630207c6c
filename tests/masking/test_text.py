"""Secrets in text are masked, and ordinary text stays as it is."""

from __future__ import annotations

import time

import pytest

from jobqueue.masking import MASK, mask_tail, mask_text

# Put together here, so that scanners of secrets do not take them for real ones.
A40, HEX = "aB3" * 13 + "x", "0a1b2c3d" * 4
S = "hunter2zz"
SECRETS = [
    (f"password={S}", S), (f"password: {S}", S), (f'"password": "{S}"', S), (f"{{'passwd': '{S}'}}", S),
    (f"login(user='kim', pwd='{S}')", S), (f"dbPassword={S}", S), (f"PGPASSWORD={S}", S), (f"x-api-key: {S}", S),
    (f"apiKey='{S}'", S), (f"client_secret={S}&grant=code", S), (f"https://x.test/?access_token={S}&b=1", S),
    (f'{{\\"password\\": \\"{S}\\"}}', S), (f"password = {S}", S), (f"passphrase => '{S}'", S),
    (f"sessionid={S}; path=/", S), (f"csrfmiddlewaretoken={S}", S), (f"credentials=('kim', '{S}')", S),
    (f"Cookie: a=1; sid={S}", S), (f"Set-Cookie: x={S}; HttpOnly", S), (f"Authorization: Negotiate {S}", S),
    ("Authorization: Basic a2ltOmh1bnRlcjI=", "a2ltOmh1bnRlcjI"), (f"sent Bearer {A40}", A40),
    (f"https://kim:{S}@example.com/a", S), (f"mysql://kim:{S}@db/shop", S), (f"postgres://kim:{S}@db:5432/x", S),
    (f"redis://:{S}@cache:6379/0", S), (f"amqps://kim:{S}@mq//", S), (f"mongodb+srv://kim:{S}@m.test/x", S),
    (f"Server=db;User Id=kim;Password={S};", S), (f"AccountName=a;AccountKey={A40}==;", A40),
    (f"SharedAccessSignature={A40}", A40), (f"host=db password={S} dbname=x", S),
    ("key AKIA" + "QWERTYUIOPASDFGH is", "QWERTYUIOPASDFGH"), (f"aws_secret_access_key={A40}", A40),
    (f"ghp_{A40}", A40), (f"github_pat_{A40}", A40), (f"glpat-{A40[:20]}", A40[:20]), (f"xoxb-12-{A40}", A40),
    (f"sk_live_{A40}", A40), (f"whsec_{A40}", A40), (f"AIza{A40[:35]}", A40[:35]), (f"ya29.{A40}", A40),
    (f"AC{HEX} failed", HEX), (f"SG.{A40[:22]}.{A40}", A40), (f"npm_{A40}", A40), (f"pypi-{A40}", A40),
    (f"dckr_pat_{A40}", A40), (f"123456789:AA{A40[:33]}", A40[:33]), (f"sk-proj-{A40}", A40), (f"hf_{A40}", A40),
    (f"hvs.{A40}", A40), (f"https://hooks.slack.com/services/T0/B0/{A40}", A40),
    (f"eyJhbGciOiJI.eyJzdWIiOiIx.{A40}", A40),
    (f"-----BEGIN RSA PRIVATE KEY-----\n{A40}\n{A40}\n-----END RSA PRIVATE KEY-----", A40),
    (f"-----BEGIN PRIVATE KEY-----\n{A40}\n{A40}", A40), (f"private_key={HEX}{HEX}", HEX),
    ("paid with 4111 1111 1111 1111", "1111 1111"), ("card 5555555555554444.", "5555555555554444"),
    ("resident 900101-1234567", "1234567"), ("ssn 123-45-6789", "45-6789"), (f"비밀번호: {S}", S),
]  # fmt: skip
ORDINARY = [
    "shop.orders.tasks.send_receipt", "token bucket", "lock_token expired", "secretary: Kim", "author: Lee",
    "3f2b8c1e-7d4a-4f7e-9a55-0c1d2e3f4a5b", "2b6e38869cb5d58baeb0ca0fd39a22d1ad1fd3f4", "fingerprint 0f3c9a1b2c3d4e5f",
    'File "/srv/shop/auth/session.py", line 12, in login', "KeyError: 'password'", "max_tokens=4096", "token_count: 5",
    "ValueError: invalid token in line 3", "Basic authentication failed", "bearer of bad news", "job 4111111111111112",
    "2026-01-31 12:01:07.123456", "web-1:211:5f0c2a9e/1.1", "https://example.com:8080/a?b=1", "1769860867123456",
    "order-key=customer-12345678", "redis://cache:6379/0", "password=None", "password_changed_at=2026-01-31",
    "monkey=1 keyboard=2", "task-1234567890", "010-1234-5678", "session expired after 5 minutes", "sk-1",
]  # fmt: skip


def test_the_table_has_fifty_patterns():
    assert len(SECRETS) >= 50


@pytest.mark.parametrize(("text", "secret"), SECRETS, ids=[str(n) for n in range(len(SECRETS))])
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

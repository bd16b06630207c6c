"""Failures of the same kind have the same fingerprint, others have another one."""

import json
import os
import re
import subprocess
import sys
import time
import timeit
import types

import pytest
from django.db import IntegrityError, OperationalError, transaction

from jobqueue.exceptions import JobLost
from jobqueue.failures import FINGERPRINT_CHARS, fingerprint
from jobqueue.failures import text as texts
from jobqueue.failures.text import _VALUES_OF_LONG, _plain
from tests.app.models import Ticket
from tests.failures.raising import raised
from tests.marks import finding


def mark(error, task="app.tasks.send", queue="q"):
    return fingerprint(error, task=task, queue=queue)


def fail_with(text):
    raise ValueError(text)


SAME = [
    ("order 17 is closed", "order 918273 is closed"),
    ("no user 'ada'", "no user 'grace hopper'"),
    ('no user "ada"', 'no user "O\'Neil"'),
    ("lost 0x7f3a99b0", "lost 0xDEADBEEF"),
    ("job 8c9cd5f4-33f6-4b1b-9e6f-0c3f2f5b1a77", "job 11111111-aaaa-4bbb-8ccc-dddddddddddd"),
    ("commit 24fe801 failed", "commit 9a9adfff12 failed"),
    ("no route to 10.0.0.1:5432", "no route to 192.168.100.20:80"),
    ("no route to fe80::1", "no route to 2001:db8::ff00:42:8329"),
    ("mail to ada@example.org bounced", "mail to g.hopper@navy.example bounced"),
    ("GET https://a.example/x?y=1 failed", "GET http://b.example/ failed"),
    ("at 2026-11-23 10:00:01", "at 2027-01-02 23:59:59"),
    ("paid 1,000.50", "paid 7"),
    ("token eyJhbGciOiJIUzI1NiJ9 expired", "token 0b1c2d3e4f5a6b7c8d9e expired"),
    ("<Order object at 0x7f00>", "<Order object at 0x7f11aa>"),
    ("b'\\x00' is no text", "b'abc' is no text"),
    ("lines\n  of   text", "lines of text"),
    (f"cannot read '{'a b' * 300}' of the row", f"cannot read '{'c d' * 500}' of the row"),
    (f"no room for {'7, ' * 400}in the table", f"no room for {'81, ' * 300}in the table"),
    (f"cannot read '{'a b' * 3000}' of the row", f"cannot read '{'c d' * 5000}' of the row"),
    (f'cannot read "{"it is " * 3000}" of the row', f'cannot read "{"x y" * 9000}" of the row'),
]
#: each of these made a kind of its own
SAME_TOO = [
    ("amount -5 is wrong", "amount 5 is wrong"),
    ("amount +1e-05 is wrong", "amount 0.5 is wrong"),
    ("amount 1.5E+300 is wrong", "amount -2e9 is wrong"),
    ("due Mon, 3 Mar 2025", "due Tue, 14 May 2026"),
    ("due Monday, March 3", "due Dec 24"),
    ("at 2026-11-23T10:00:01.123456+00:00 it", "at 2026-11-23T10:00:01Z it"),
    ("at 2026-11-23 10:00:01.123456 it", "at 2026-11-23 10:00 it"),
    ("cannot open /srv/a/b.txt now", "cannot open /home/ada/c-d now"),
    ("no route to db-1.example.com", "no route to mail.example.org"),
    (
        'duplicate key value violates unique constraint "u"\nDETAIL:  Key (email)=(Ada Lovelace) already exists.',
        'duplicate key value violates unique constraint "u"\nDETAIL:  Key (email)=(Bob (junior)) already exists.',
    ),
    (
        "null value in column violates not-null constraint\nDETAIL:  Failing row contains (Ada, null, x).",
        "null value in column violates not-null constraint\nDETAIL:  Failing row contains (Bob\nx), null, y z).",
    ),
    (
        "HTTPConnectionPool(host='a', port=80): Max retries exceeded with url: /orders/ada (Caused by X('<Y>: no'))",
        "HTTPConnectionPool(host='b', port=81): Max retries exceeded with url: / (Caused by X('<Z>: no'))",
    ),
]
OTHERS = [
    ("order 17 is closed", "order 17 is open"),
    ("can't find it, don't ask", "can't lose it, don't ask"),
    ("no such table", "no such column"),
    ("app.tasks.send failed", "app.tasks.load failed"),
    ("it may fail", "it might fail"),
    ("read and/or write", "read or write"),
]


@pytest.mark.parametrize(
    ("one", "two"), [*SAME, *(pytest.param(one, two, marks=finding("F16")) for one, two in SAME_TOO)]
)
def test_values_in_a_message_do_not_count(one, two):
    assert mark(raised(lambda: fail_with(one))) == mark(raised(lambda: fail_with(two)))
    assert mark(one) == mark(two)


@pytest.mark.parametrize(("one", "two"), OTHERS)
def test_words_of_a_message_count(one, two):
    assert mark(raised(lambda: fail_with(one))) != mark(raised(lambda: fail_with(two)))


def fail_with_error(error):
    raise error


def of_driver(state):
    """An error of Django about one of psycopg."""
    error, cause = IntegrityError("refused 'x'"), type("Error", (Exception,), {"__module__": "psycopg"})("refused 'x'")
    cause.sqlstate, error.__cause__ = state, cause
    return error


@finding("M-F2")
@pytest.mark.parametrize(
    "errors",
    [
        [IntegrityError(number, f"'{number}'") for number in (1062, 1452, 1048)],
        [OperationalError(number, f"'{number}'") for number in (1205, 1213, 1040, 1054, 2006)],
        [of_driver(state) for state in ("23505", "23503")],
    ],
    ids=["data of MySQL", "operation of MySQL", "PostgreSQL"],
)
def test_the_number_or_state_of_a_database_counts(errors):
    marks = [mark(raised(lambda error=error: fail_with_error(error))) for error in errors]
    assert len({*marks}) == len(errors)
    again = type(errors[0])(*errors[0].args[:1], "'another value'") if len(errors[0].args) > 1 else of_driver("23505")
    assert mark(raised(lambda: fail_with_error(again))) == marks[0]


@pytest.mark.django_db
def test_the_same_refusal_of_the_real_database_is_one_kind_whatever_the_values():
    def twice(name):
        Ticket.objects.create(number=name)
        with transaction.atomic():
            Ticket.objects.create(number=name)

    ada, bob = (raised(lambda name=name: twice(name)) for name in ("Ada (countess) L", "Bob"))
    missing = raised(lambda: Ticket.objects.create(number=None))
    assert mark(ada) == mark(bob)
    assert mark(missing) != mark(ada)


def test_a_number_is_no_code_of_a_database_if_the_error_is_none():
    assert mark(KeyError(1)) == mark(KeyError(2))


def fail_elsewhere(text):
    raise ValueError(text)


def test_task_class_and_place_count_and_the_queue_only_for_handlers():
    error = raised(lambda: fail_with("x"))
    assert mark(error) == mark(error, queue="other")
    assert mark(error) != mark(error, task="app.tasks.other")
    assert mark(error, task=None) != mark(error, task=None, queue="other")
    assert mark(error) != mark(raised(lambda: fail_elsewhere("x")))
    assert mark(error) != mark(KeyError("x"))
    assert re.fullmatch(f"[0-9a-f]{{{FINGERPRINT_CHARS}}}", mark(error))


def test_the_place_is_the_innermost_function_of_the_project_not_of_a_library():
    # The same message from two depths of a library, called by one function of the project.
    errors = [raised(lambda: call(json.loads)), raised(lambda: call(json.JSONDecoder().decode))]
    assert len({mark(error) for error in errors}) == 1


def call(parse):
    return parse("{")


def compiled(source, path):
    """The function `run` of a module at `path`."""
    module = types.ModuleType("shop.tasks")
    exec(compile(source, path, "exec"), module.__dict__)
    return module.run


def test_neither_the_folder_of_a_deploy_nor_the_line_counts():
    source = "def run():\n    return 1 / 0\n"
    errors = [raised(compiled("\n" * n + source, f"/srv/{n}/shop/tasks.py")) for n in range(3)]
    assert len({mark(error) for error in errors}) == 1


def test_frames_of_comprehensions_which_newer_pythons_do_not_have_do_not_count():
    plain = raised(compiled("def run():\n    return 1 / 0\n", "/srv/shop/tasks.py"))
    nested = raised(compiled("def run():\n    return [1 / 0 for _ in 'a']\n", "/srv/shop/tasks.py"))
    assert mark(plain) == mark(nested)


def down(depth):
    return down(depth + 1)


def test_a_deep_recursion_is_one_kind_wherever_it_ends():
    assert mark(raised(lambda: down(0))) == mark(raised(lambda: [down(1) for _ in range(1)]))


def test_lost_runs_of_a_task_are_one_kind_whichever_worker_ran_them():
    assert mark(JobLost("the lease of worker a:1 ran out")) == mark(JobLost("killed by signal 9"))


def test_it_is_the_same_in_every_process():
    code = "from jobqueue.failures import fingerprint as f; print(f(KeyError('x'), task='app.tasks.send', queue='q'))"
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    printed = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert printed.stdout.strip() == mark(KeyError("y"))


def test_it_was_the_same_in_the_first_release():
    assert mark(KeyError("x")) == "3bb68fac4cc7beb3"
    assert mark("disk 7 is full") == "90aee8f865dfdb10"


@pytest.mark.parametrize(
    "text",
    [
        "'" * 5000,
        "a'" * 5000,
        "1:" * 5000,
        "a1-" * 5000,
        "@" * 5000,
        "x" * 10**6,
        '"\\' * 5000,
        "a-" * 5000,
        "a:" * 5000,
        ")=(" * 5000,
        "/a" * 5000,
        "a." * 5000,
        "1e" * 5000,
        "May 1" * 5000,
    ],
)
def test_no_message_takes_long(text, monkeypatch):
    looked_at, sub = [], _VALUES_OF_LONG.sub
    with monkeypatch.context() as patched:
        recorded = types.SimpleNamespace(sub=lambda mark, read: looked_at.append(len(read)) or sub(mark, read))
        patched.setattr(texts, "_VALUES_OF_LONG", recorded)
        mark(ValueError(text))
    assert max(looked_at) <= texts._READ_CHARS
    # Four times as much is four times the work: going back over what was read would make it sixteen times.
    assert work(text[: texts._READ_CHARS]) < 8 * work(text[: texts._READ_CHARS // 4 + 1])
    # Of a short message an open quotation is looked for from each quote, to the end.
    assert work(text[: texts._MESSAGE_CHARS]) < 100 * work(text[: texts._MESSAGE_CHARS // 10])


def work(text):
    """The time of the processor that the fingerprint of this message takes, however busy others keep the machine."""
    error = ValueError(text)
    return min(timeit.repeat(lambda: mark(error), timer=time.thread_time, number=1, repeat=20))


def test_a_plain_message_keeps_its_words():
    assert _plain("can't charge 'ada' 12.50 at https://x.example/1") == "can't charge # # at #"

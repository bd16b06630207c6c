"""manage.py relay_outbox, in this process."""

import json
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings

from jobqueue.tasks import registry
from tests.cli.helpers import refused
from tests.outbox.helpers import pending, say

pytestmark = pytest.mark.django_db


def relay(*words):
    out, err = StringIO(), StringIO()
    status = 0
    try:
        call_command("relay_outbox", *words, stdout=out, stderr=err)
    except SystemExit as stopped:
        status = stopped.code
    except CommandError as error:
        return error.returncode, out.getvalue(), str(error)
    return status, out.getvalue(), err.getvalue()


@pytest.fixture(autouse=True)
def no_signals(monkeypatch):
    from jobqueue.management.commands import relay_outbox

    monkeypatch.setattr(relay_outbox.Command, "_catch_signals", lambda *_: None)


def test_drain_delivers_what_is_due_and_says_so(listen):
    heard = listen("t")
    for n in range(3):
        say("t", n, "k")
    assert relay("--drain") == (0, "delivered 3, failed 0, dead lettered 0, put off 0, lost 0\n", "")
    assert [event.payload for event in heard] == [0, 1, 2]
    assert relay("--drain", "-v", "0") == (0, "", "")


def test_json_is_one_object_per_round(listen):
    listen("t")
    say("t", 1)
    status, out, _ = relay("--drain", "--json", "--batch-size", "1")
    (line,) = out.splitlines()
    expected = {"version": 1, "delivered": 1, "failed": 0, "dead_lettered": 0, "put_off": 0, "lost": 0}
    assert (status, json.loads(line)) == (0, expected)


def test_topics_are_a_list(listen):
    heard = listen("*")
    for topic in "abc":
        say(topic, topic)
    relay("--drain", "--topics", "a,c")
    assert sorted(event.payload for event in heard) == ["a", "c"]
    assert len(pending()) == 1


@pytest.mark.parametrize(
    "words",
    [
        ["--batch-size", "0"],
        ["--interval", "0"],
        ["--interval", "-1s"],
        ["--topics", ""],
        ["--topics", "a,,b"],
        ["x"],
        ["--log-format", "xml"],
    ],
)
def test_bad_usage_is_refused(capsys, words):
    refused(capsys, "relay_outbox", *words)


def test_a_relay_without_the_subscribers_of_a_module_that_cannot_be_imported_does_not_start(listen, monkeypatch):
    heard = listen("t")
    say("t", 1)
    monkeypatch.setattr(registry, "failed_modules", lambda: ["shop.tasks"])
    status, _, text = relay("--drain")
    assert (status, heard, len(pending())) == (4, [], 1)
    assert "the relay does not start: shop.tasks could not be imported" in text


def test_an_unknown_database_is_bad_usage(capsys):
    refused(capsys, "relay_outbox", "--database", "nowhere")


@pytest.mark.parametrize(
    "outbox",
    [
        {"ROUTES": {"t": "nonsense"}},
        {"ROUTES": {"t": 7}},
        {"ROUTES": {"t": "queue:"}},
        {"ROUTES": {"t": "queue:a,b"}},
        {"ROUTES": {"t": {"URL": "amqp://localhost", "TYPO": 1}}},
        {"ROUTES": {"t": {"URL": "kafka://localhost", "TYPO": 1}}},
        {"ROUTES": {"a,b": "subscribers"}},
        {"ROUTES": {7: "subscribers"}},
        {"BATCH_SIZE": 0},
        {"ON_KEY_FAILURE": "eat"},
        {"TYPO": 1},
        [],
    ],
)
def test_bad_settings_are_status_4(outbox):
    with override_settings(JOBQUEUE={"OUTBOX": outbox}):
        status, _, said = relay("--drain")
    assert status == 4
    assert "OUTBOX" in said

"""JOBQUEUE["ALARMS"]: what is refused, with a sentence."""

import dataclasses

import pytest

from jobqueue import checks
from jobqueue.alarms import RUNBOOKS
from jobqueue.conf import load, read
from jobqueue.conf.alarms import COUNT_MAX, EXHAUSTED, FIGURES, LATE, REFUSED, SILENT, STALLED, Recipient
from jobqueue.stats import QueueStats
from jobqueue.stats.live import COUNT_MAX as COUNTED_MAX
from tests.docs.markdown import ROOT

WRONG = [
    ({"mail": 5}, "ALARMS['mail'] must be a dict of thresholds"),
    ({"mail": {"redy": 5}}, "did you mean 'ready'"),
    ({"mail": {"queue": 5}}, "ALARMS['mail'] has the unknown name 'queue'; it has ready, scheduled"),
    ({"mail": {"ready": 0}}, "ALARMS['mail']['ready'] must be a number above 0 and up to 10000, is 0"),
    ({"mail": {"ready": 10_001}}, "up to 10000"),
    ({"mail": {"ready": True}}, "must be a number"),
    ({"mail": {"oldest_age_seconds": "2m"}}, "must be a number of seconds"),
    ({"mail": {"error_rate": 20}}, "must be a number above 0 and up to 1"),
    ({"a,b": {"ready": 5}}, "keys are names of queues, '*', 'WORKERS' and 'NOTIFY'"),
    ({"": {"ready": 5}}, "keys are names of queues"),
    ({"mail*": {"ready": 5}}, "keys are names of queues"),
    ({7: {"ready": 5}}, "keys are names of queues"),
    ({"WORKERS": {"silent": 0}}, "ALARMS['WORKERS']['silent'] must be an int from 1"),
    ({"WORKERS": {"refused_connections": 0.5}}, "ALARMS['WORKERS']['refused_connections'] must be an int from 1"),
    ({"WORKERS": {"ready": 5}}, "a queue of this name has the thresholds of '*'"),
    ({"NOTIFY": {"ready": 5}}, "a queue of this name has the thresholds of '*'"),
    ({"NOTIFY": "log"}, "must be a list"),
    ({"NOTIFY": ["sms"]}, "ALARMS['NOTIFY'][0] must be 'log', 'mail'"),
    ({"NOTIFY": ["log", "log"]}, "ALARMS['NOTIFY'][1] is there twice"),
    ({"NOTIFY": [{"MAIL": "ops@example.com"}]}, "[0] must be"),
    ({"NOTIFY": [{"MAIL": []}]}, "[0] must be"),
    ({"NOTIFY": [{"MAIL": ["ops@example.com\nBcc: x@y.z"]}]}, "[0] must be"),
    ({"NOTIFY": [{"WEBHOOK": "file:///etc/passwd"}]}, "an http or https URL"),
    ({"NOTIFY": [{"WEBHOOK": "ftp://example.com/"}]}, "an http or https URL"),
    ({"NOTIFY": [{"WEBHOOK": "https://"}]}, "an http or https URL"),
    ({"NOTIFY": [{"WEBHOOK": "https://a.example/ b"}]}, "an http or https URL"),
    ({"NOTIFY": [{"HOOK": "on_alarm"}]}, "a dotted path"),
    ({"NOTIFY": [{"HOOK": "a.b", "MAIL": ["a@b.c"]}]}, "[0] must be"),
    ([], "ALARMS must be a dict"),
]


@pytest.mark.parametrize(("given", "words"), WRONG)
def test_a_wrong_value_is_refused(given, words):
    _, problems = read({"ALARMS": given})
    assert len(problems) == 1
    assert words in problems[0]


def test_a_url_is_never_shown(settings):
    settings.JOBQUEUE = {"ALARMS": {"NOTIFY": [{"WEBHOOK": "ftp://user:secret@example.com/"}]}}
    (found,) = checks.check_settings()
    assert found.id == "jobqueue.E001"
    assert "secret" not in found.msg
    right, _ = read({"ALARMS": {"NOTIFY": [{"WEBHOOK": "https://user:secret@example.com/"}]}})
    assert "secret" not in repr(right)


def test_what_is_right_is_read(settings):
    settings.JOBQUEUE = {
        "ALARMS": {
            "mail": {"ready": 100, "error_rate": 0.2},
            "quiet": {},
            "*": {"oldest_age_seconds": 120},
            "WORKERS": {"silent": 1, "refused_connections": 10},
            "NOTIFY": ["log", "mail", {"MAIL": ["a@b.c"]}, {"WEBHOOK": "https://e.com/x"}, {"HOOK": "a.b"}],
        }
    }
    alarms = load().alarms
    assert alarms.watches
    assert alarms.of_queue("mail") == {"ready": 100.0, "error_rate": 0.2}
    assert alarms.of_queue("quiet") == {}
    assert alarms.of_queue("WORKERS") == {"oldest_age_seconds": 120.0}
    assert alarms.workers == {"silent": 1.0, "refused_connections": 10.0}
    assert alarms.notify[0] == Recipient("log")
    assert [recipient.kind for recipient in alarms.notify] == ["log", "mail", "MAIL", "WEBHOOK", "HOOK"]
    assert not read({"ALARMS": {"mail": {}, "NOTIFY": ["log"]}})[0].alarms.watches


def test_the_figures_are_those_of_the_statistics_and_each_has_a_runbook():
    figures = {field.name for field in dataclasses.fields(QueueStats)} - {"queue", "capped"}
    assert {*FIGURES} == figures | {"rising_age_seconds"}
    assert {*RUNBOOKS} == {*FIGURES, SILENT, STALLED, EXHAUSTED, REFUSED, LATE}
    assert all((ROOT / page).exists() for page in RUNBOOKS.values())
    assert COUNT_MAX == COUNTED_MAX


def test_check_finds_a_hook_that_is_not_there_and_mail_to_nobody(settings):
    settings.ADMINS = []
    settings.JOBQUEUE = {
        "ALARMS": {"NOTIFY": ["mail", {"HOOK": "tests.app.nothing.here"}, {"HOOK": "tests.app.tasks"}]}
    }
    found = checks.check_settings()
    assert [one.id for one in found] == ["jobqueue.W034", "jobqueue.E009", "jobqueue.E009"]
    settings.ADMINS = [("ops", "ops@example.com")]
    settings.JOBQUEUE = {"ALARMS": {"NOTIFY": ["mail", {"HOOK": "tests.alarms.test_settings.is_told"}]}}
    assert checks.check_settings() == []


def test_check_finds_an_alarm_about_connections_that_nobody_counts(settings):
    alarms = {"WORKERS": {REFUSED: 1}, "NOTIFY": ["log"]}
    settings.JOBQUEUE = {"ALARMS": alarms, "LOCK_METRICS_SECONDS": None}
    (found,) = checks.check_settings()
    assert (found.id, "LOCK_METRICS_SECONDS" in found.hint) == ("jobqueue.W035", True)
    settings.JOBQUEUE = {"ALARMS": alarms}
    assert checks.check_settings() == []


def is_told(alarm):
    """A hook."""

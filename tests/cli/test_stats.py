"""manage.py jobs stats: a line for each queue, and the same as JSON."""

import pytest
from django.db import OperationalError

from jobqueue.cli import stats
from jobqueue.cli.arguments import NO_DATABASE
from jobqueue.db.clock import UtcNowPlus
from jobqueue.exceptions import StatementTimeout
from jobqueue.stats import QueueStats
from jobqueue.transitions import ack, claim, fail
from tests.cli.helpers import printed, read_json, refused
from tests.factories import make_job, make_jobs
from tests.stats.helpers import counted

pytestmark = pytest.mark.django_db


def test_each_queue_has_a_line():
    assert printed("stats") == "no queue has jobs\n"
    with counted():
        make_jobs(6, "mail", max_attempts=1)
        leases = claim("mail", 5, worker="w")
        ack(leases[0])
        ack(leases[1])
        ack(leases[2])
        fail(leases[3], error="x")
        make_job("import", run_at=UtcNowPlus(-7500))
    head, imports, mail = printed("stats").splitlines()
    assert head.split("  ")[0] == "queue"
    assert imports.split()[:8] == ["import", "1", "0", "0", "0", "0", "2h", "5m"]
    cells = mail.split()
    assert cells[:6] == ["mail", "1", "0", "0", "1", "1"]
    assert cells[-3:] == ["1", "25.0", "%"]
    assert printed("stats", "--queue", "mail").splitlines()[1:] != [imports]
    assert printed("stats", "-v", "0") == ""


def test_json_has_the_attributes_of_the_snapshot():
    make_job("mail")
    ((one,),) = read_json("stats").values()
    assert set(one) == set(QueueStats.__dataclass_fields__)
    assert (one["queue"], one["ready"], one["capped"]) == ("mail", 1, False)
    assert [found["queue"] for found in read_json("stats", "--queue", "other")["queues"]] == ["other"]


def test_a_capped_count_has_a_plus(monkeypatch):
    one = QueueStats("q", 10_000, 3, 0, 0, 0, 5.0, 1234.5, 2, 0.5, True)
    monkeypatch.setattr(stats, "snapshot", lambda **given: [one])
    assert printed("stats").splitlines()[1].split()[:3] == ["q", "10,000+", "3"]


def test_a_queue_that_cannot_be_is_refused(capsys):
    assert "Nothing was" in refused(capsys, "jobs", "stats", "--queue", "a,b")


@pytest.mark.parametrize("error", [StatementTimeout("Reading took longer than 10 s."), OperationalError("gone")])
def test_a_database_that_does_not_answer_in_time_is_status_3(monkeypatch, error):
    def fails(**given):
        raise error

    monkeypatch.setattr(stats, "snapshot", fails)
    for words in (("stats",), ()):
        assert printed(*words, status=NO_DATABASE) == ""


def test_watch_prints_it_again_and_goes_on_after_a_slow_read(monkeypatch, capsys):
    answers = iter([[], StatementTimeout("Reading took longer than 10 s."), []])

    def answer(**given):
        found = next(answers, None)
        if found is None:
            raise KeyboardInterrupt
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(stats, "snapshot", answer)
    assert printed("stats", "--watch", "10ms") == "no queue has jobs\n\nno queue has jobs\n"
    assert "longer than 10 s" in capsys.readouterr().err

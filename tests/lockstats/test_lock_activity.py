"""The page "Lock activity" and manage.py jobs locks: the same facts, for people and for programs."""

import json
import re
from io import StringIO

import pytest
from django.core.management import call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import translation

from jobqueue.db.diagnostics import Deadlock, LockWait, Party
from jobqueue.locks import lease_lock
from jobqueue.lockstats import recorder
from jobqueue.lockstats.recorder import Finding, deadlock_finding, keep_findings
from jobqueue.lockstats.report import finding_lines
from jobqueue.models import LockFinding, LockRow
from tests.admin.helpers import HOSTILE, LIMIT_STATEMENTS, SCRIPT, Inline, client_of, person, root, text_of
from tests.cli.helpers import refused
from tests.locks.waiting import TABLE, fresh, one_waits
from tests.marks import committed
from tests.settings import VENDOR

PAGE = "/admin/jobqueue/lockstat/"
pytestmark = pytest.mark.django_db


def wait(text="x", blocking=2):
    return LockWait("w " + text, 1, blocking, 3.0, text, "X", text, text, True, 4.0)


def report(text="x"):
    parties = (Party(11, text, (text,), (text,), False), Party(12, "", (text,), (text,), True))
    return Deadlock(f"now {text}", parties, "")


def keep(text="x"):
    """One finding of each kind."""
    slow = {"statement": text, "runs": 3, "lock_seconds": 1.5, "total_seconds": 2.0}
    ttl = {"lock": "lease lock", "key": text, "task": text, "ttl_seconds": 60.0, "limit_seconds": 120.0}
    found = [
        deadlock_finding(report(text)),
        Finding(LockFinding.Kind.WAIT, text, {f: getattr(wait(text), f) for f in LockWait.__slots__}, 3.0),
        Finding(LockFinding.Kind.SLOW, text, slow, 1.5),
        Finding(LockFinding.Kind.TTL, text, ttl),
    ]
    keep_findings(found, using="default")


def count_keys(*names):
    for number, name in enumerate(names):
        for _ in range(number + 1):
            recorder.acquired("lease lock", name, 0.25, contended=False)
        recorder.failed("mutex", name, 1.5)
        recorder.released("lease lock", name, 2.0)
        recorder.reentered("lease lock", name)
    recorder.flush()


def test_the_page_tells_keys_kinds_and_findings_in_words():
    count_keys("report", "import")
    keep("SELECT 1")
    with lease_lock("held one", 600):
        page = text_of(root().get(PAGE))
    for text in (
        "Lock activity", "Most contended keys", "report", "import", "held one", "Kinds of locks", "100.0%", "250ms",
        "session 11: SELECT 1", "was rolled back", "session 1 waited 3s for SELECT 1", "idle in its transaction",
        "3 runs waited 1.5s for locks", "may run for 120 s",
    ):  # fmt: skip
        assert text in page, text
    assert "Lock activity" in text_of(root_again().get("/admin/jobqueue/"))


def root_again():
    from django.contrib.auth.models import User

    return client_of(User.objects.get(username="root"))


def test_an_empty_page_says_so():
    page = text_of(root().get(PAGE))
    assert page.count("No lock was requested in this period.") == 2
    assert "None." in page


def test_a_range_can_be_chosen_and_an_odd_one_is_the_usual_one():
    count_keys("k")
    client = root()
    for chosen in ("15m", "1h", "24h", "x", "", "1h'--", "\x00"):
        page = text_of(client.get(PAGE, {"range": chosen}))
        assert page.count('aria-current="true"') >= 1
        assert ">k</th>" in page


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_and_statements_are_text(text):
    count_keys(text)
    keep(text)
    LockRow.objects.create(lock_key=text, owner=text, owner_token=b"x" * 16, fence=1, expires_at="2999-01-01T00:00:00Z")
    page = text_of(root().get(PAGE))
    assert SCRIPT not in page
    assert "\u202e" not in page
    assert not Inline(page).found
    assert [t for t, attrs in Inline(page).tags if t == "img" and attrs.get("src") == "x"] == []


def test_each_part_needs_its_permission():
    count_keys("a-key")
    keep("a-statement")
    assert client_of(None).get(PAGE).status_code == 302
    assert client_of(person("view_job", "view_lockfinding", name="bob")).get(PAGE).status_code == 403
    page = text_of(client_of(person("view_lockstat", name="eve")).get(PAGE))
    assert "a-key" in page
    assert "a-statement" not in page
    assert "wait for a lock now" not in page
    page = text_of(client_of(person("view_lockstat", "view_lockfinding", name="kim")).get(PAGE))
    assert "a-statement" in page


def test_nothing_can_be_opened_changed_or_posted():
    client = root()
    count_keys("k")
    for path in (f"{PAGE}add/", f"{PAGE}abc/change/", f"{PAGE}abc/delete/", f"{PAGE}abc/history/"):
        assert client.get(path).status_code in (302, 403, 404), path
    assert client.post(f"{PAGE}abc/change/", {}).status_code in (302, 403, 404)


def test_the_page_costs_a_fixed_number_of_queries():
    client, costs = root(), []
    for names in (["a"], [f"k{number}" for number in range(40)]):
        count_keys(*names)
        keep(names[-1])
        client.get(PAGE)
        with CaptureQueriesContext(connection) as captured:
            text_of(client.get(PAGE))
        costs.append(len(captured))
        ours = [q["sql"] for q in captured.captured_queries if re.search("job_lock_(stat|finding)", q["sql"])]
        # The sums by kind, by verb and error, and by hour need no limit.
        assert sum("LIMIT" not in statement for statement in ours) == 3
    assert costs[0] == costs[1] <= 23 + LIMIT_STATEMENTS


def test_the_page_is_korean(settings):
    settings.LANGUAGE_CODE = "ko"
    count_keys("k")
    keep("SELECT 1")
    with translation.override("ko"):
        page = text_of(root().get(PAGE))
    for text in (
        "락 활동",
        "경합이 가장 심한 키",
        "뮤텍스",
        "임대 락",
        "롤백됨",
        "교착 상태",
        "작업이 실행되는 동안 만료될 수 있는 락",
    ):
        assert text in page, text
    if VENDOR in ("sqlite", "postgres", "mariadb"):
        assert "않습니다" in page


def test_it_is_told_that_nothing_is_counted(settings):
    settings.JOBQUEUE = {"LOCK_METRICS_SECONDS": None}
    assert "LOCK_METRICS_SECONDS is None" in text_of(root().get(PAGE))


def run(*words):
    out = StringIO()
    call_command("jobs", "locks", *words, stdout=out)
    return out.getvalue()


def test_the_command_tells_the_same():
    count_keys("report", "import")
    keep("SELECT 1")
    with lease_lock("held one", 600):
        said = run("--since", "15m")
    for text in (
        "Locks of the last 15m 0s", "lease locks  acquired 3", "mutex  import  acquired 0  waited 0  failed 1 (100.0%)",
        "held one  ", "fence 1", "session 11: SELECT 1", "was rolled back", "re-entries 1",
    ):  # fmt: skip
        assert text in said, said
    if VENDOR == "sqlite":
        assert "Not shown: This database does not tell" in said
    else:
        assert re.search(r"Deadlocks since the server began to count: \d+", said)


def test_json_has_stable_keys():
    count_keys("k")
    keep()
    found = json.loads(run("--json"))
    assert list(found) == [
        "version", "since_seconds", "kinds", "keys", "redone", "deadlock_hours",
        "held", "waits", "deadlocks", "slow_statements", "problems", "found",
    ]  # fmt: skip
    assert found["version"] == 1
    assert found["since_seconds"] == 3600
    assert {one["key"] for one in found["keys"]} == {"k"}
    assert set(found["keys"][0]) == {
        "kind", "key", "acquired", "contended", "failed", "released", "reentries", "wait_us", "wait_us_max", "held_us",
        "held_us_max", "failure_rate",
    }  # fmt: skip
    assert {one["kind"] for one in found["found"]} == {"deadlock", "wait", "slow", "ttl"}


def test_quiet_is_quiet_and_hostile_names_forge_no_line():
    count_keys("k\nDeadlocks since the server began to count: 99")
    keep("x\ny")
    assert "\nDeadlocks since the server began to count: 99" not in run()
    out = StringIO()
    call_command("jobs", "locks", verbosity=0, stdout=out)
    assert out.getvalue() == ""


@pytest.mark.parametrize("words", [["--since", "0"], ["--limit", "0"], ["--limit", "x"], ["--database", "elsewhere"]])
def test_bad_usage_is_refused(capsys, words):
    refused(capsys, "jobs", "locks", *words)


@committed
@pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has no row locks")
def test_a_wait_that_goes_on_is_shown():
    with one_waits():
        fresh()
        said = run()
        (found,) = [one for one in json.loads(run("--json"))["waits"] if TABLE in one["locked"]]
    assert f"UPDATE {TABLE} SET note = ? WHERE id = ?" in said.replace("`", "")
    assert "held by " in said
    assert "secret" not in said
    assert found["seconds"] > 0


@pytest.mark.parametrize("kind", LockFinding.Kind.values)
@pytest.mark.parametrize("detail", [{}, [], None, 7, "text", {"parties": [{}], "session": {}}, {"runs": "x"}])
def test_a_finding_that_cannot_be_read_is_a_sentence(kind, detail):
    assert finding_lines(LockFinding(kind=kind, detail=detail)) == [
        "The details cannot be read: another version of the package has written them, or plain SQL."
    ]

"""The page of settings and checks: what is in force, without a secret, and the checks on request."""

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder
from django.test.utils import CaptureQueriesContext
from django.utils import translation

from jobqueue.admin import settings as settings_page
from jobqueue.doctor import examination as doctor
from jobqueue.doctor.finding import Check, Finding, Level, Need
from jobqueue.masking import HIDDEN, hide_database, hide_route, hide_url
from tests.admin.helpers import HOSTILE, LIMIT_STATEMENTS, SCRIPT, Inline, client_of, person, root, text_of
from tests.settings import VENDOR

pytestmark = pytest.mark.django_db

PAGE = "/admin/jobqueue/settings/"
SECRET = "hunter-2-secret"


def page_of(client=None, **data):
    client = client or client_of(person("view_flowrule"))
    # Long names may break after each underscore.
    return text_of(client.post(PAGE, data) if data else client.get(PAGE)).replace("<wbr>", "")


def row_of(page, name):
    """The cells of the row with this name."""
    return page.partition(f"<code>{name}</code></th>")[2].partition("</tr>")[0]


@pytest.mark.parametrize(
    ("user", "status"),
    [
        (lambda: None, 302),
        (lambda: person("view_flowrule", staff=False), 302),
        (lambda: person("view_job", "change_limits"), 403),
        (lambda: person("view_flowrule"), 200),
    ],
)
def test_who_may_see_the_limits_of_queues_may_see_the_settings(user, status):
    client = client_of(user())
    assert client.get(PAGE).status_code == status
    assert client.post(PAGE).status_code == (403 if status == 200 else status)


def test_the_menu_names_the_page_only_for_those_who_may_see_it():
    assert PAGE in text_of(client_of(person("view_job", "view_flowrule")).get("/admin/jobqueue/"))
    assert PAGE not in text_of(client_of(person("view_job", name="bob")).get("/admin/jobqueue/"))


def test_a_value_says_whether_the_settings_have_it(settings):
    settings.JOBQUEUE = {"LEASE_SECONDS": 120, "OUTBOX": {"BATCH_SIZE": 7}, "RETENTION": {"done": "2d"}}
    page = page_of()
    assert "<code" in row_of(page, "LEASE_SECONDS")
    for name, text, source in [
        ("LEASE_SECONDS", "120", ">settings<"),
        ("MAX_ATTEMPTS", "25", ">default<"),
        ("BATCH_SIZE", "7", ">settings<"),
        ("done", "AGE 2d", ">settings<"),
        ("failed", "AGE 90d", ">default<"),
    ]:
        assert text in row_of(page, name), name
        assert source in row_of(page, name), name
    assert "1.0\xa0MB" in row_of(page, "MAX_PAYLOAD_BYTES")
    assert page.index("<code>LEASE_SECONDS</code>") < page.index("<code>MAX_ATTEMPTS</code>")


def test_every_entry_of_a_mapping_has_a_row(settings):
    settings.JOBQUEUE = {
        "QUEUES": {"mail": {"CONCURRENCY": 4, "RATE": "5/s", "RETENTION": {"done": "1d"}}, "plain": {}},
        "DEPENDENCIES": {"stripe": {"FAILURES": 9}},
        "CAUSES": {"shop.errors.Declined": "DATA"},
        "SCHEDULES": {"nightly": {"TASK": "shop.tasks.sync", "EVERY": "1h", "ARGS": [SECRET]}},
        "ALARMS": {"mail": {"ready": 50}, "WORKERS": {"silent": 1}, "NOTIFY": ["log", {"MAIL": ["ops@shop.example"]}]},
    }
    page = page_of()
    assert "CONCURRENCY = 4" in row_of(page, "mail")
    assert "RETENTION[&#x27;done&#x27;] = AGE 1d" in row_of(page, "mail")
    assert "FAILURES = 9" in row_of(page, "stripe")
    assert "data" in row_of(page, "shop.errors.Declined")
    assert "EVERY = &#x27;1h&#x27;" in row_of(page, "nightly")
    assert "ready = 50" in page
    assert "MAIL ops@shop.example" in row_of(page, "NOTIFY")
    assert SECRET not in page


def test_no_secret_is_shown(settings, monkeypatch):
    monkeypatch.setitem(connection.settings_dict, "PASSWORD", SECRET)
    settings.JOBQUEUE = {
        "METRICS_TOKEN": f"{SECRET}-token",
        "REDIS_URL": f"redis://ann:{SECRET}@cache.internal:6379/3",
        "WAKEUP": f"rediss://:{SECRET}@wake.internal/1",
        "ALARMS": {"NOTIFY": [{"WEBHOOK": f"https://hooks.example/T0/{SECRET}?key={SECRET}"}]},
        "OUTBOX": {
            "ROUTES": {
                "order.*": f"redis://u:{SECRET}@broker.internal:6379/0",
                "mail.*": {"URL": "redis://second.internal/0", "STREAM": SECRET},
                "near": "queue:next",
            }
        },
    }
    page = page_of()
    assert SECRET not in page
    for shown in (
        "cache.internal:6379/3",
        "wake.internal/1",
        "hooks.example",
        "broker.internal",
        "queue:next",
        "STREAM",
    ):
        assert shown in page, shown
    assert HIDDEN in row_of(page, "METRICS_TOKEN")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://cache:6379/0", "redis://cache:6379/0"),
        ("redis://:pw@cache/0", "redis://•••@cache/0"),
        ("https://hooks.example/T0/x", "https://hooks.example/•••"),
        ("https://hooks.example?key=x", "https://hooks.example/•••"),
        ("kafka://u:pw@a:9092,b:9092", "kafka://•••@a:9092,b:9092"),
        ("kafka://a:9092,u:pw@b:9092", "kafka://•••@b:9092"),
        ("amqp://u:pw@a;amqp://u:pw@b", "amqp://•••"),
        ("redis://:p/w@cache/0", "redis://•••"),
        ("redis://:p@s/w@cache/0", "redis://•••"),
        ("redis://u:password", "redis://•••"),
        ("redis://[::1]:6379/0", "redis://[::1]:6379/0"),
        ("unix:///run/redis.sock?password=x", "unix:///•••"),
        ("no url", "•••"),
        ("", "•••"),
    ],
)
def test_of_a_url_only_scheme_and_host_are_shown(url, shown):
    assert hide_url(url) == shown


def test_what_is_no_route_and_what_is_no_name_is_hidden():
    assert hide_route(None) == hide_route({"OPTIONS": 1}).partition(" ")[0] == HIDDEN
    assert [hide_database(name) for name in ("shop", "postgres://u:pw@h/db", "dbname=x password=y")] == [
        "shop",
        HIDDEN,
        HIDDEN,
    ]


@pytest.mark.parametrize("text", HOSTILE)
def test_names_from_the_settings_are_shown_as_text(settings, text):
    settings.JOBQUEUE = {"QUEUES": {text: {"CONCURRENCY": 2}}, "SCHEDULES": {text: {"TASK": text, "CRON": text}}}
    page = page_of()
    assert SCRIPT not in page
    assert "\u202e" not in page
    assert not Inline(page).found
    assert [tag for tag, attrs in Inline(page).tags if attrs.get("src") == "x"] == []


def test_wrong_settings_are_named_and_the_page_works(settings):
    settings.JOBQUEUE = {"LEASE_SECOND": 10, "MAX_ATTEMPTS": 0, "REDIS_URL": f"http://:{SECRET}@x"}
    page = page_of(root())
    assert "JOBQUEUE is wrong" in page
    assert "unknown key &#x27;LEASE_SECOND&#x27;" in page
    assert ">default<" in row_of(page, "MAX_ATTEMPTS")
    assert SECRET not in page
    assert "Run the checks" not in page
    settings.JOBQUEUE = {"DATABASE": "elsewhere"}
    assert "elsewhere" in page_of(root_again())
    settings.JOBQUEUE = ["no dict"]
    assert "must be a dict" in page_of(root_again())


def root_again():
    from django.contrib.auth.models import User

    return client_of(User.objects.get(username="root"))


@pytest.mark.skipif(VENDOR != "sqlite", reason="its own facts")
def test_the_facts_of_the_database_and_of_the_process_are_there():
    page = page_of()
    for text in (
        "SQLite",
        "serializable",
        "BEGIN IMMEDIATE",
        "as that of the database server",
        "all were run",
        "Django",
    ):
        assert text in page, text


def test_migrations_that_were_not_run_are_named():
    MigrationRecorder.Migration.objects.filter(app="jobqueue", name__startswith="0001").delete()
    page = page_of()
    assert "not run: 0001" in page


def test_clocks_that_differ_are_marked(monkeypatch):
    class Ahead:
        ahead_seconds = 95.0

    monkeypatch.setattr(settings_page, "compare_clocks", lambda using: Ahead)
    assert '<span class="jobqueue-state jobqueue-expired">1m 35s ahead of the database server</span>' in page_of()


def test_a_database_that_does_not_answer_leaves_the_settings_readable(monkeypatch):
    from django.db import OperationalError

    def refuse(using):
        raise OperationalError(SCRIPT)

    monkeypatch.setattr(settings_page, "server_facts", refuse)
    page = page_of()
    assert "The database does not answer:" in page
    assert SCRIPT not in page
    assert "LEASE_SECONDS" in page


def test_a_view_costs_few_queries_and_runs_no_check(monkeypatch):
    monkeypatch.setattr(settings_page, "run_checks", None)
    client = client_of(person("view_flowrule", "change_limits"))
    page = page_of(client)
    assert "Run the checks" in page
    with CaptureQueriesContext(connection) as captured:
        page_of(client)
    assert len(captured.captured_queries) <= 10 + LIMIT_STATEMENTS
    assert not [query for query in captured.captured_queries if "job_queue" in query["sql"]]


def test_the_checks_run_on_request_and_their_findings_say_what_to_do():
    page = page_of(client_of(person("view_flowrule", "change_limits")), run="1")
    assert "<code>no_worker</code>" in page or "checks have found nothing" in page
    assert "all indexes of jobqueue are there, with their columns" in page
    assert "the Redis servers of the settings answer" in page.partition("were left out")[2]
    assert not LogEntry.objects.exists()


def test_who_may_not_change_limits_gets_no_button():
    assert 'method="post" action="#checks"' not in page_of()


def test_a_finding_is_text_and_errors_come_first(monkeypatch):
    def look(using):
        yield Finding(Level.INFO, "lease_short", "first", "do", {})
        yield Finding(Level.ERROR, "no_worker", SCRIPT, "fix\u202e", {})

    monkeypatch.setattr(doctor, "CHECKS", [Check("one", "one is right", Need.NOTHING, look)])
    page = page_of(root(), run="1")
    assert page.index("no_worker") < page.index("lease_short")
    assert SCRIPT not in page
    assert "\u202e" not in page
    assert "all right" not in page


def test_no_check_begins_when_the_time_is_over(monkeypatch):
    begun = []
    checks = [Check(name, name, Need.NOTHING, lambda using: begun.append(1) or ()) for name in "ab"]
    monkeypatch.setattr(doctor, "CHECKS", checks)
    monkeypatch.setattr(settings_page, "LIMIT_SECONDS", -1.0)
    page = page_of(root(), run="1")
    assert begun == []
    assert "was over before all checks had been run" in page


@pytest.mark.skipif(VENDOR != "sqlite", reason="its own slow statement")
def test_a_read_of_a_check_that_takes_too_long_is_stopped_and_the_others_go_on(monkeypatch):
    def slow(using):
        with connection.cursor() as cursor:
            cursor.execute(
                "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT COUNT(*) FROM n WHERE i < 0"
            )
        return ()

    first = Check("slow", "it is fast", Need.DATABASE, slow)
    then = Check("then", "the next one", Need.DATABASE, lambda using: ())
    monkeypatch.setattr(doctor, "CHECKS", [first, then])
    monkeypatch.setattr(settings_page, "READ_SECONDS", 0.05)
    page = page_of(root(), run="1")
    assert "check_failed" in page
    assert "was stopped" in page
    assert "the next one" in page


def test_the_page_is_there_in_korean(settings):
    settings.LANGUAGE_CODE = "ko"
    with translation.override("ko"):
        assert 'lang="ko"' in page_of()


def test_a_post_needs_the_csrf_token():
    assert root(enforce_csrf_checks=True).post(PAGE).status_code == 403


def test_a_run_that_finds_nothing_wrong_says_so(monkeypatch):
    right = [Check(name, f"{name} is right", Need.NOTHING, lambda using: ()) for name in "ab"]
    other = Check("far", "the broker answers", Need.NOTHING, lambda using: 1 / 0, beside=True)
    monkeypatch.setattr(doctor, "CHECKS", [*right, other])
    page = page_of(root(), run="1")
    assert "3 checks have found nothing" in page
    assert "1 check was left out" in page
    assert "a is right" in page
    assert "all right" in page


def test_a_site_of_the_project_can_have_the_page_too(rf):
    from django.contrib.admin import AdminSite

    from jobqueue.admin.settings import PAGE as SITE_PAGE

    site = AdminSite(name="ours")
    SITE_PAGE.add_to(site)
    assert [pattern.name for pattern in site.get_urls() if str(pattern.pattern) == "jobqueue/settings/"] == [
        "jobqueue_settings"
    ]
    request = rf.get("/")
    request.user = person("view_flowrule")
    assert site.get_app_list(request) == []

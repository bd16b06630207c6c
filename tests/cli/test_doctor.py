"""manage.py jobs doctor: what it prints, and its exit status."""

import json
import re
from pathlib import Path

import pytest
from django.apps import apps

from jobqueue.cli.arguments import NO_DATABASE
from jobqueue.cli.explain import FOUND_WRONG
from jobqueue.doctor import examination
from tests.cli.helpers import printed, read_json
from tests.doctor.helpers import PLAIN, add_worker, unreachable
from tests.marks import committed
from tests.settings import VENDOR

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("healthy_process")]
CHECKS = len(examination.CHECKS) + 1


def test_without_errors_and_warnings_the_status_is_0():
    add_worker()
    assert printed("doctor").splitlines()[-2] == f"{CHECKS} checks: 0 errors, 0 warnings, {len(PLAIN)} for information"


def test_a_finding_is_printed_with_what_to_do_and_the_status_is_1():
    lines = printed("doctor", status=FOUND_WRONG).splitlines()
    assert lines[0].split(maxsplit=2) == ["warning", "no_worker", "No worker is running, so no job starts."]
    assert lines[1].strip() == "To do: Start one: python manage.py runworker"
    assert lines[0].index("No worker") + 2 == lines[1].index("To do")
    assert lines[-2].endswith(f"0 errors, 1 warning, {len(PLAIN)} for information")


def test_the_last_line_names_the_page_on_troubleshooting():
    said = printed("doctor", status=FOUND_WRONG)
    assert said.splitlines()[-1] == "Symptoms, and what to do: docs/howto/troubleshooting.md"
    assert Path("docs/howto/troubleshooting.md").exists()
    assert "troubleshooting" not in printed("doctor", "--json", status=FOUND_WRONG)


def test_checks_that_passed_are_listed_with_verbosity_2_only():
    add_worker()
    assert "all indexes of jobqueue are there" not in printed("doctor")
    lines = [line.split(maxsplit=2) for line in printed("doctor", "-v2").splitlines()]
    assert ["passed", "indexes", "all indexes of jobqueue are there, with their columns"] in lines


def test_with_verbosity_0_it_prints_nothing_but_json():
    assert printed("doctor", "-v0", status=FOUND_WRONG) == ""
    assert json.loads(printed("doctor", "-v0", "--json", status=FOUND_WRONG))["version"] == 1


def test_json_has_stable_names():
    found = read_json("doctor", status=FOUND_WRONG)
    assert set(found) == {"database", "findings", "checks"}
    assert found["database"] == "default"
    (one,) = [one for one in found["findings"] if one["id"] == "no_worker"]
    assert one == {
        "level": "warning",
        "id": "no_worker",
        "text": "No worker is running, so no job starts.",
        "fix": "Start one: python manage.py runworker",
        "evidence": {"queues": [], "silent": 0},
    }
    states = {check["name"]: check["state"] for check in found["checks"]}
    assert (states["workers"], states["indexes"]) == ("findings", "passed")


@committed
def test_an_unreachable_database_has_the_status_3():
    with unreachable():
        lines = printed("doctor", status=NO_DATABASE).splitlines()
    assert lines[0].split(maxsplit=2)[:2] == ["error", "database_unreachable"]
    assert "were left out" in lines[-2]


def test_it_speaks_english_whatever_the_language_is(settings):
    settings.LANGUAGE_CODE = "ko"
    said = printed("doctor", status=FOUND_WRONG)
    assert said.isascii()


def test_grants_names_every_table_and_the_account():
    said = printed("doctor", "--grants", "jobs")
    if VENDOR == "sqlite":
        assert said.startswith("-- This database has no accounts")
        assert read_json("doctor", "--grants", "jobs")["grants"] == []
        return
    tables = {model._meta.db_table for model in apps.get_app_config("jobqueue").get_models()}
    assert tables | {"django_migrations"} == set(re.findall(r"\b(job_\w+|django_migrations)\b", said))
    assert read_json("doctor", "--grants", "jobs")["grants"] == said.splitlines()


@pytest.mark.skipif(VENDOR not in ("mysql", "mariadb"), reason="accounts of other servers have no host")
def test_an_account_of_mysql_may_name_its_host_and_is_quoted():
    assert "TO 'jobs'@'%';" in printed("doctor", "--grants", "jobs")
    assert "TO 'o''brien'@'10.0.0.7';" in printed("doctor", "--grants", "o'brien@10.0.0.7")

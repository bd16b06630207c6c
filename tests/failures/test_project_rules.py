"""The rules of a project: JOBQUEUE["CAUSES"], and causes= of a task."""

import dataclasses
import sys
from types import ModuleType

import pytest
import requests
from django.test import override_settings

from jobqueue import checks, conf, enqueue, handler, task
from jobqueue.exceptions import InvalidType, InvalidValue, WrongSettings
from jobqueue.failures import classify
from jobqueue.failures.project import missing_class, read_causes
from jobqueue.transitions import claim, fail
from jobqueue.transitions.failing import cause_of
from tests.factories import claim_one, job, settle_run
from tests.marks import committed

pytestmark = pytest.mark.usefixtures("own_registry")


class Declined(Exception):
    """A card was declined."""


class Stolen(Declined):
    """A card was stolen."""


DECLINED = f"{__name__}.Declined"


def pay():
    """A task."""
    raise Stolen


def rules(**by_path):
    return (read_causes({path.replace("__", "."): cause for path, cause in by_path.items()}, "CAUSES"),)


def test_a_rule_holds_for_the_class_its_subclasses_and_what_is_raised_from_them():
    own = (read_causes({DECLINED: "DATA"}, "CAUSES"),)
    wrapped = RuntimeError()
    wrapped.__cause__ = Stolen()
    assert [classify(error, own) for error in (Declined(), Stolen(), wrapped, ValueError())] == ["data"] * 4
    assert classify(Declined()) == "unknown"


def test_rules_of_a_project_precede_those_of_the_package():
    assert classify(KeyError("x"), rules(builtins__LookupError="RESOURCE")) == "resource"
    assert classify(KeyError("x"), rules(builtins__Exception="RESOURCE")) == "resource"
    assert classify(ConnectionError(), rules(builtins__ConnectionError="UNKNOWN")) == "unknown"


def test_a_class_may_be_named_by_any_path_from_which_it_can_be_imported():
    assert classify(requests.exceptions.SSLError(), rules(requests__exceptions__SSLError="RESOURCE")) == "resource"
    assert classify(requests.ConnectionError(), rules(requests__ConnectionError="RESOURCE")) == "resource"
    assert classify(requests.ConnectionError(), rules(no_such_package__Error="RESOURCE")) == "dependency"


def test_a_rule_whose_module_loads_its_names_late_and_cannot_names_no_class(monkeypatch):
    late = ModuleType("late")

    def missing(name):
        raise ImportError(f"install the extra for {name}")

    late.__getattr__ = missing
    monkeypatch.setitem(sys.modules, "late", late)
    assert classify(ValueError(), (read_causes({"late.Boom": "RESOURCE"}, "CAUSES"),)) == "data"
    assert "no such class" in missing_class("late.Boom")


def test_the_rules_of_a_task_precede_the_setting_and_hold_for_its_aliases():
    made = task(causes={DECLINED: "DATA"}, aliases=["app.old_pay"])(pay)
    with override_settings(JOBQUEUE={"CAUSES": {DECLINED: "resource", "builtins.KeyError": "FORMAT"}}):
        assert [cause_of(Stolen(), name) for name in (made.module_path, "app.old_pay")] == ["data"] * 2
        assert [cause_of(Stolen(), name) for name in ("app.other", None)] == ["resource"] * 2
        assert cause_of(KeyError(), made.module_path) == "format"
    assert cause_of(Stolen(), made.using(priority=3).module_path) == "data"
    assert {made: 1}[dataclasses.replace(made)] == 1


@committed
def test_a_failed_job_has_the_cause_that_its_task_gives():
    made = task(causes={Declined: "DATA"})(pay)
    job_id = made.enqueue().id
    settle_run(claim_one("default"))
    assert job(job_id).cause == "data"


@pytest.mark.parametrize(
    ("given", "kind", "words"),
    [
        ({DECLINED: "DATTA"}, InvalidValue, "did you mean 'DATA'?"),
        ({DECLINED: "LOST"}, InvalidValue, "must be one of FORMAT, DEPENDENCY, DATA, RESOURCE, UNKNOWN"),
        ({DECLINED: "TIMEOUT"}, InvalidValue, "must be one of"),
        ({DECLINED: None}, InvalidValue, "must be one of"),
        ({"Declined": "DATA"}, InvalidValue, "is not the path of an exception class"),
        ({"shop.errors.": "DATA"}, InvalidValue, "is not the path of an exception class"),
        ({7: "DATA"}, InvalidValue, "is not the path of an exception class"),
        ({int: "DATA"}, InvalidType, "is not an exception class"),
        (["app.Declined"], InvalidType, "must be a dict"),
    ],
)
def test_what_no_rule_can_be_is_refused_with_the_name_of_the_task(given, kind, words):
    with pytest.raises(kind) as caught:
        task(causes=given)(pay)
    assert f"task {__name__}.pay: causes" in str(caught.value)
    assert words in str(caught.value)


def test_causes_belong_to_the_task_and_not_to_a_job():
    with pytest.raises(InvalidType, match=r"it belongs in @task\(causes=\.\.\.\)"):
        task(pay).using(causes={})


def test_wrong_rules_of_the_setting_are_refused_at_the_start_and_by_check():
    with override_settings(JOBQUEUE={"CAUSES": {"x": "DATA", DECLINED: "DEPENDENSY", "builtins.KeyError": "DATA"}}):
        found = checks.check_settings()
        assert [message.id for message in found] == ["jobqueue.E001"] * 2
        assert "did you mean 'DEPENDENCY'?" in found[1].msg
        with pytest.raises(WrongSettings, match="CAUSES"):
            conf.load()
    with override_settings(JOBQUEUE={"CAUSES": []}):
        assert [message.id for message in checks.check_settings()] == ["jobqueue.E001"]


def test_check_reports_rules_that_name_no_class():
    task(causes={f"{__name__}.Declinde": "DATA"})(pay)
    wrong = {"no_such_package.Error": "DATA", "jobqueue.conf.load": "DATA", "json.JSONDecodeError": "FORMAT"}
    with override_settings(JOBQUEUE={"CAUSES": wrong}):
        messages = [message.msg for message in checks.check_causes()]
    found = [text for text in messages if "CAUSES" in text or __name__ in text]
    assert len(found) == 3
    assert "CAUSES: 'no_such_package.Error': there is no such class." in found[0]
    assert "'jobqueue.conf.load': it is not an exception class." in found[1]
    assert f"causes of {__name__}.pay" in found[2]
    assert "did you mean 'Declined'?" in found[2]


def test_the_module_of_a_rule_may_fail_to_import(tmp_path, monkeypatch):
    (tmp_path / "breaks_on_import.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    assert "ZeroDivisionError" in missing_class("breaks_on_import.Error")


@committed
@pytest.mark.parametrize(("payload", "cause"), [({"n": 1}, "format"), ({"order": {}}, "data"), ({"order": 1}, "data")])
def test_a_key_that_the_payload_of_a_handler_lacks_is_another_format_and_one_of_its_own_is_data(payload, cause):
    @handler("q")
    def book(payload):
        assert type(payload.copy()) is dict
        return payload["order"]["id"] if payload["order"] != 1 else {}["price"]

    job_id = enqueue("q", payload)
    settle_run(claim_one())
    after = job(job_id)
    assert after.cause == cause
    assert cause == "data" or "the payload has no key 'order'; its keys are 'n'" in after.last_error


@committed
def test_a_batch_handler_gets_such_payloads_too():
    @handler("q", batch=10)
    def book(leases):
        return {lease.job_id: lease.payload["order"] for lease in leases}

    job_id = enqueue("q", {"n": 1})
    settle_run(claim_one())
    assert job(job_id).cause == "format"


@pytest.mark.django_db
def test_a_failure_that_plain_code_reports_has_the_cause_of_its_exception():
    task(causes={DECLINED: "RESOURCE"})(pay)
    job_id = enqueue("q", 1)
    fail(claim("q", worker="w")[0], error=Declined())
    assert job(job_id).cause == "unknown"

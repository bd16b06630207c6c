"""What a group carries: data, callbacks with arguments, results by name, and the failures of its members."""

import json

import pytest
from django.core.management import call_command
from django.db import transaction

from jobqueue import current_job, group, groups, task, transitions, workflow
from jobqueue.exceptions import Discard, InvalidType, InvalidValue, PayloadError, PayloadTooLarge
from jobqueue.models import GroupMember, Job, JobGroup
from jobqueue.testing import drain
from tests.app import tasks
from tests.groups.helpers import claimed
from tests.marks import committed

pytestmark = [committed, pytest.mark.usefixtures("own_registry")]
seen: list = []
DATA = {"order": 42, "lines": [1, "ä", None, 1.5], "deep": {"a": {}}}


@pytest.fixture(autouse=True)
def nothing_seen():
    seen.clear()


@task()
def look(*args, **kwargs):
    seen.append((current_job().group.data, args, kwargs))
    return len(seen)


@task(max_attempts=1)
def fails(words):
    raise ValueError(words)


@task()
def gives_up():
    raise Discard("not needed")


@task()
def tells_failures():
    found = current_job().group.failures()
    return [[one.name, one.state, one.cause, (one.error or "").strip().splitlines()[-1:]] for one in found]


@task()
def reads_all():
    return groups.get(current_job().group.id).results()


@pytest.mark.parametrize("data", [DATA, [], 0, "", False, [None]])
def test_members_and_callbacks_read_the_data_of_their_group(data):
    with group("import", data=data, on_done=look) as made:
        made.add(look)
    drain()
    assert [found for found, _, _ in seen] == [data, data]
    assert groups.get(made.id).data == data
    assert groups.known()[0].data == data


def test_a_group_without_data_has_none():
    with group("import") as made:
        made.add(look)
    drain()
    assert seen == [(None, (), {})]
    assert groups.get(made.id).data is None


def test_nodes_of_a_workflow_read_its_data():
    wf = workflow("steps", data=DATA, on_success=(look, ["end"]))
    wf.add(look, after=[wf.add(look)])
    number = wf.start()
    drain()
    assert seen == [(DATA, (), {}), (DATA, (), {}), (DATA, ("end",), {})]
    assert groups.get(number).data == DATA


@pytest.mark.parametrize("make", [group, workflow])
@pytest.mark.parametrize(
    ("data", "kind"), [(object(), PayloadError), ({"a": "x" * 2_000_000}, PayloadTooLarge), ({1: 2}, PayloadError)]
)
def test_data_that_cannot_be_stored_is_refused(make, data, kind):
    with pytest.raises(kind, match="Nothing was written"):
        make("import", data=data)
    assert not JobGroup.objects.exists()


@pytest.mark.parametrize(
    ("callback", "args", "kwargs"),
    [
        (look, (), {}),
        ((look,), (), {}),
        ((look, [42]), (42,), {}),
        ((look, (42, "a")), (42, "a"), {}),
        ((look, [42], {"mail": True}), (42,), {"mail": True}),
        ((look, [], {"mail": True}), (), {"mail": True}),
    ],
)
def test_a_callback_gets_its_arguments(callback, args, kwargs):
    with group("import", on_success=callback):
        pass
    drain()
    assert seen == [(None, args, kwargs)]


@pytest.mark.parametrize(
    ("callback", "kind"),
    [
        ((), InvalidType),
        ((look, 42), InvalidType),
        ((look, "ab"), InvalidType),
        ((look, [], []), InvalidType),
        ((look, [], {}, 1), InvalidType),
        ((None, []), InvalidType),
        ([look], InvalidType),
        ((tasks.add, [1]), InvalidValue),
        ((tasks.add, [1, 2, 3]), InvalidValue),
        ((look, [object()]), InvalidValue),
    ],
)
def test_a_wrong_callback_is_refused_before_anything_is_written(callback, kind):
    with transaction.atomic():
        with pytest.raises((kind, InvalidValue), match="Nothing was written"), group("import", on_done=callback):
            pass
        assert not JobGroup.objects.exists()


def test_a_resumed_workflow_calls_back_with_the_same_arguments():
    wf = workflow("steps", on_done=(look, [7]))
    wf.add(fails, "broken")
    number = wf.start()
    drain()
    groups.resume(number)
    drain()
    assert [args for _, args, _ in seen] == [(7,), (7,)]


def test_results_are_by_the_names_of_nodes_also_of_ancestors():
    wf = workflow("steps")
    first = wf.add(tasks.add, 1, 1, name="first")
    second = wf.add(tasks.add, 2, 2, name="second", after=[first])
    wf.add(reads_all, name="third", after=[second])
    number = wf.start()
    drain()
    assert groups.get(number).results() == {"first": 2, "second": 4, "third": {"first": 2, "second": 4}}


def test_results_of_a_group_are_by_job_id_and_only_of_those_that_are_done():
    with group("import") as made:
        made.add_many(tasks.add, [(1, 1), (2, 2)])
        made.add(fails, "broken")
        made.add(tasks.add, 3, 3)
    first, second, _, _ = GroupMember.objects.order_by("pk").values_list("pk", flat=True)
    transitions.ack_many(claimed(2))
    assert groups.get(made.id).results() == {str(first): None, str(second): None}


def test_results_over_several_pages_are_complete(monkeypatch):
    monkeypatch.setattr("jobqueue.grouping.members._PAGE", 2)
    with group("import") as made:
        made.add_many(tasks.add, [(number, 0) for number in range(5)])
        made.add_many(fails, [("a",), ("b",), ("c",)])
    drain()
    found = groups.get(made.id)
    assert sorted(found.results().values()) == [0, 1, 2, 3, 4]
    assert [one.error.strip().splitlines()[-1] for one in found.failures()] == [f"ValueError: {x}" for x in "abc"]


def test_missing_results_are_not_left_out_silently():
    with group("import") as made:
        made.add(tasks.add, 1, 1)
    drain()
    Job.objects.all().delete()
    with pytest.raises(InvalidValue, match="was deleted"):
        groups.get(made.id).results()


def test_a_callback_reads_which_members_failed_and_why():
    wf = workflow("steps", on_failure=tells_failures)
    first = wf.add(fails, "broken", name="pay")
    wf.add(tasks.add, 1, 1, name="ship", after=[first])
    wf.add(gives_up, name="mail")
    wf.add(tasks.add, 1, 1, name="log")
    wf.start()
    drain()
    told = Job.objects.get(task__endswith="tells_failures").result
    by_name = {name: (state, cause, error) for name, state, cause, error in told}
    assert by_name["pay"] == ("failed", "data", ["ValueError: broken"])
    assert (by_name["ship"][0], by_name["mail"][0]) == ("canceled", "canceled")
    assert "log" not in by_name


def test_failures_of_deleted_jobs_have_no_error():
    with group("import") as made:
        made.add(fails, "broken")
    drain()
    Job.objects.all().delete()
    (found,) = groups.get(made.id).failures()
    assert (found.state, found.cause, found.error) == ("failed", None, None)


def test_jobs_groups_show_prints_the_data_without_its_secrets(capsys):
    with group("import", data={"order": 42, "password": "hunter2"}) as made:
        pass
    call_command("jobs", "groups", "show", str(made.id))
    said = capsys.readouterr().out
    assert '"order": 42' in said
    assert "hunter2" not in said
    call_command("jobs", "groups", "show", str(made.id), "--json")
    said = capsys.readouterr().out
    assert json.loads(said)["group"]["data"]["order"] == 42
    assert "hunter2" not in said

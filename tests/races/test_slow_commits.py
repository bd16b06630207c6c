"""Locks that a commit has not released yet.

InnoDB releases them one after the other, the latest first, within microseconds, or milliseconds on a busy machine. So
who has waited for one of them may meet another. Here another session holds it instead, until it was met.
"""

from types import SimpleNamespace

import pytest
from django.db import connection

from jobqueue import group, groups, workflow
from jobqueue.grouping import nodes as grouping_nodes
from jobqueue.models import GroupMember, GroupParent, Job
from jobqueue.transitions import ack, claim
from tests.app import tasks
from tests.factories import state
from tests.marks import committed
from tests.settings import VENDOR

pytestmark = [
    committed,
    pytest.mark.skipif(
        VENDOR != "mysql", reason="only on MySQL can a session lock the index entry of a row that has ended"
    ),
]


@pytest.fixture
def releasing(monkeypatch):
    """A session that locks the index entries of ended rows, which it keeps in the index; and how often it was met."""
    session, found = connection.copy(), SimpleNamespace(met=0)

    def run(sql):
        with session.cursor() as cursor:
            cursor.execute(sql)
            return cursor.fetchall()

    def meet(seconds):
        found.met += 1
        session.rollback()

    def lock(model, index, **entry):
        where = " AND ".join(f"{column} = {value}" for column, value in (entry | {"state": 0}).items())
        assert not run(f"SELECT * FROM {model._meta.db_table} FORCE INDEX ({index}) WHERE {where} FOR UPDATE")

    found.lock = lock
    run("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    session.set_autocommit(False)
    run("START TRANSACTION WITH CONSISTENT SNAPSHOT")
    monkeypatch.setattr(grouping_nodes, "time", SimpleNamespace(sleep=meet))
    yield found
    session.rollback()
    session.close()


def test_do_not_keep_the_last_member_from_ending_the_group(releasing):
    with group("race", on_done=tasks.group_done) as g:
        g.add_many(tasks.add, [(1, 1), (2, 1)])
    first, second = claim("default", 2, worker="w")
    ack(first)
    releasing.lock(GroupMember, "ix_group_member", group_id=g.id, job_id=first.job_id)
    ack(second)
    assert groups.get(g.id).state == "ended"
    assert releasing.met == 1
    assert Job.objects.filter(task="tests.app.tasks.group_done").count() == 1


def test_do_not_keep_the_last_parent_from_opening_the_node(releasing):
    wf = workflow("publish")
    sides = [wf.add(tasks.add, 1, 2, name=name) for name in ("left", "right")]
    wf.add(tasks.tell_parents, after=sides, name="bottom")
    number = wf.start()
    left, right = claim("default", 2, worker="w")
    bottom = GroupMember.objects.get(group_id=number, name="bottom").pk
    ack(left)
    pair = GroupParent.objects.get(child_id=bottom, parent_id=left.job_id).pk
    releasing.lock(GroupParent, "ix_group_child", child_id=bottom, id=pair)
    ack(right)
    assert (state(bottom), Job.objects.get(pk=bottom).gate) == ("READY", 0)
    assert releasing.met == 1

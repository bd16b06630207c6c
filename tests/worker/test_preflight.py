"""A worker does not start on a table that claims cannot use."""

import logging

import pytest
from django.db import connection

from jobqueue.models import Job
from jobqueue.worker.monitor.preflight import MISCONFIGURED, preflight
from jobqueue.worker.shared.queue_choice import Selection
from jobqueue.worker.shared.worker_options import Options
from tests.marks import committed

pytestmark = committed


@pytest.fixture
def without_index():
    """ix_pick is gone."""
    (index,) = [index for index in Job._meta.indexes if index.name == "ix_pick"]
    with connection.schema_editor() as editor:
        editor.remove_index(Job, index)
    yield
    with connection.schema_editor() as editor:
        editor.add_index(Job, index)


def start():
    return preflight(Options(selection=Selection(), database="default"))


def test_a_good_table_is_fine(caplog):
    assert start() == 0
    assert "TASKS" not in caplog.text


@pytest.mark.parametrize(("silenced", "told"), [([], True), (["jobqueue.W028"], False)])
def test_a_worker_says_that_tasks_do_not_become_jobs(settings, caplog, silenced, told):
    settings.TASKS = {}
    settings.SILENCED_SYSTEM_CHECKS = silenced
    assert start() == 0
    assert ("TASKS is not set" in caplog.text) == told


@pytest.mark.usefixtures("without_index")
def test_a_missing_index_is_a_configuration_error(caplog):
    with caplog.at_level(logging.ERROR):
        assert start() == MISCONFIGURED
    assert "ix_pick is missing" in caplog.text

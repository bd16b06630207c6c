"""Jobs that are found by their ids: by a list of them, or by a range."""

import pytest
from django.db import connection

from jobqueue import enqueue_many
from jobqueue.db import vendor
from jobqueue.models import Job
from tests.settings import VENDOR

pytestmark = pytest.mark.django_db


def pks(rows):
    return list(rows.order_by("pk").values_list("pk", flat=True))


@pytest.mark.parametrize("count", [1, 999, 1000, 2500])
def test_each_id_of_a_list_is_found_however_long_it_is(count):
    ids = enqueue_many("q", range(count))
    assert pks(vendor("default").of_ids(Job.objects.all(), ids)) == sorted(ids)


def test_other_conditions_hold_beside_a_list():
    ids = enqueue_many("q", range(3)) + enqueue_many("other", range(3))
    assert pks(vendor("default").of_ids(Job.objects.filter(queue="q"), ids)) == sorted(ids[:3])


def test_a_range_begins_behind_its_first_id_and_ends_with_its_last():
    ids = sorted(enqueue_many("q", range(5)))
    rows = Job.objects.filter(pk__gt=ids[0], pk__lte=ids[3])
    assert pks(vendor("default").within_ids(rows, ids[0], ids[3])) == ids[1:4]


@pytest.mark.skipif(VENDOR != "mariadb", reason="only MariaDB makes a table of a long list")
def test_a_long_list_is_no_temporary_table():
    ids = enqueue_many("q", range(2500))
    sql, params = vendor("default").of_ids(Job.objects.all(), ids).values("pk").query.sql_with_params()
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN {sql}", params)
        assert [row[1] for row in cursor.fetchall()] == ["SIMPLE"]

"""jobs doctor reads no more for a backlog than for an empty table."""

import re

from django.db import connection

from jobqueue.doctor import examine
from jobqueue.flow import set_limit
from jobqueue.models import Job
from jobqueue.transitions import claim
from tests.doctor.helpers import add_worker
from tests.plans.conftest import READY
from tests.plans.test_redrive_plans import reads
from tests.plans.test_stale_statistics import literal, read_by
from tests.settings import VENDOR

#: rows and index entries, or steps of SQLite's machine / 10, that the backlog may cost
READS_MAX = 1000


def cost():
    """What the database reads for examine()."""
    examine()
    if VENDOR != "postgres":
        return reads(examine)
    sent = []

    def keep(execute, sql, params, many, context):
        sent.append((sql, params))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(keep):
        examine()
    own = [one for one in sent if re.match(r"(SELECT|WITH) ", one[0]) and 'FROM "job_' in one[0]]
    assert len(own) > 10
    costs = {one[0]: read_by(one, literal) for one in own}
    assert max(costs.values()) < READS_MAX, max(costs, key=costs.get)
    return sum(costs.values())


def test_a_backlog_costs_a_few_seeks(transactional_db, request):
    add_worker("w")
    set_limit("q", concurrency=1000)
    empty = cost()
    request.getfixturevalue("backlog")
    claim("q", 100, worker="w")
    assert Job.objects.ready().count() > READY
    assert cost() - empty < READS_MAX < READY

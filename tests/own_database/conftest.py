"""A project whose queue has a database of its own, as docs/howto/own-database.md says."""

import copy
from contextlib import contextmanager

import pytest
from django.db import connections
from django.test import override_settings

from tests.app.models import Account, Ticket

OURS, QUEUE, SHOP = "jobqueue", "queue", "shop"


class QueueRouter:
    """The router of the page: our tables are on "queue" and nowhere else, and nothing else is there."""

    def db_for_read(self, model, **hints):
        return QUEUE if model._meta.app_label == OURS else None

    db_for_write = db_for_read

    def allow_migrate(self, db, app_label, **hints):
        if app_label == OURS:
            return db == QUEUE
        return False if db == QUEUE else None


@contextmanager
def another_database(alias):
    """One more database of the same server, empty, as `alias`."""
    entry = copy.deepcopy(connections.settings["default"])
    entry["NAME"] = entry["TEST"]["NAME"] = f"{entry['NAME']}_{alias}"
    connections.settings[alias] = entry
    creation = connections[alias].creation
    creation._create_test_db(verbosity=0, autoclobber=True)
    connections[alias].close()
    try:
        yield connections[alias]
    finally:
        connections[alias].close()
        creation.destroy_test_db(entry["NAME"], verbosity=0)
        del connections[alias], connections.settings[alias]


@pytest.fixture(scope="package", autouse=True)
def databases(django_db_setup, django_db_blocker):
    """ "queue" has the queue's tables, "shop" has two tables of the host and none of the queue's."""
    from django.core.management import call_command

    with django_db_blocker.unblock(), another_database(QUEUE), another_database(SHOP) as shop:
        with override_settings(DATABASE_ROUTERS=[QueueRouter()]):
            call_command("migrate", database=QUEUE, verbosity=0)
        with shop.schema_editor() as editor:
            editor.create_model(Ticket)
            editor.create_model(Account)
        yield


@pytest.fixture(autouse=True)
def routed():
    """The settings of such a project."""
    with override_settings(DATABASE_ROUTERS=[QueueRouter()], JOBQUEUE={"DATABASE": QUEUE}):
        yield

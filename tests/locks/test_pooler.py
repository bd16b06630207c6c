"""named_lock() behind a real PgBouncer that lends its sessions for one transaction each."""

import os
import shutil
import subprocess
import threading

import pytest
from django.db import connection

from jobqueue.exceptions import NotSupported
from jobqueue.locks import lease_lock, named_lock
from tests.marks import finding
from tests.patience import wait_until
from tests.races.actors import Actor
from tests.servers import packages
from tests.servers.net import free_port
from tests.settings import VENDOR

pytestmark = [
    pytest.mark.skipif(VENDOR != "postgres", reason="PgBouncer is PostgreSQL's"),
    pytest.mark.django_db(transaction=True),
]


@pytest.fixture
def pooler(tmp_path):
    """The port of a PgBouncer in front of the test's server."""
    program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None and packages.can_install():
        packages._apt(["install", "pgbouncer"], tmp_path / "apt.log", threading.Event())
        program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        assert not os.environ.get("CI"), "there is no pgbouncer, and CI must not pass without it"
        pytest.skip("there is no pgbouncer on this machine")
    settings, port = connection.settings_dict, free_port()
    users, ini = tmp_path / "users.txt", tmp_path / "pgbouncer.ini"
    users.write_text(f'"{settings["USER"]}" "{settings["PASSWORD"]}"\n')
    ini.write_text(
        f"[databases]\n* = host={settings['HOST'] or '127.0.0.1'} port={settings['PORT']}\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = plain\n"
        f"auth_file = {users}\npool_mode = transaction\ndefault_pool_size = 4\nignore_startup_parameters = options\n"
    )
    command = [program, str(ini)]
    if os.geteuid() == 0:
        # It refuses to be root.
        command[1:1] = ["-u", "nobody"]
        for path in (users, ini, *[tmp_path, *tmp_path.parents][:3]):
            path.chmod(path.stat().st_mode | 0o055)
    with (tmp_path / "pgbouncer.log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            yield port
        finally:
            process.terminate()


@pytest.fixture
def behind(pooler, monkeypatch):
    """This test's connections go through it, as those of a project that told nobody."""
    connection.close()
    monkeypatch.setitem(connection.settings_dict, "HOST", "127.0.0.1")
    monkeypatch.setitem(connection.settings_dict, "PORT", str(pooler))

    def answers():
        try:
            connection.ensure_connection()
        except Exception:
            return False
        return True

    wait_until(answers, what="PgBouncer")
    yield
    connection.close()


@finding("R4")
def test_a_pooler_that_nobody_told_us_about_is_seen_and_refused(behind):
    with pytest.raises(NotSupported, match="PgBouncer stands in between"):
        named_lock("k", 0).acquire()


def test_the_other_locks_work_behind_it(behind):
    with lease_lock("k", 60, 0) as lock:
        assert lock.fence


def test_without_a_pooler_nothing_is_refused():
    assert Actor(lambda: named_lock("k", 0).acquire().name).result() == "k"

"""A login of its own for the workers under test, which can be taken away."""

import os

from django.db import connection

from tests.settings import VENDOR

POSTGRES = VENDOR == "postgres"


class Account:
    """A role of the server with all rights on the tables of the test database."""

    name, password = f"refused_{os.getpid()}", "c0ffee"

    def __init__(self):
        database = connection.settings_dict["NAME"]
        self.drop()
        if POSTGRES:
            self._run(f"CREATE ROLE {self.name} LOGIN PASSWORD '{self.password}'")
            self._run(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {self.name}")
            self._run(f"GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {self.name}")
        else:
            self._run(f"CREATE USER '{self.name}'@'%%' IDENTIFIED BY '{self.password}'")
            self._run(f"GRANT ALL ON `{database}`.* TO '{self.name}'@'%%'")

    def environment(self, *, password=password, port=None, options=""):
        """What makes a worker log in with this account."""
        at = f"127.0.0.1:{port or connection.settings_dict['PORT']}"
        kind = "postgres" if POSTGRES else "mysql"
        return {f"JOBQUEUE_TEST_{VENDOR.upper()}_URL": f"{kind}://{self.name}:{password}@{at}/unused{options}"}

    def set_password(self, password):
        """From now on only this password opens the door."""
        if POSTGRES:
            self._run(f"ALTER ROLE {self.name} PASSWORD '{password}'")
        else:
            self._run(f"ALTER USER '{self.name}'@'%%' IDENTIFIED BY '{password}'")

    def set_limit(self, sessions):
        """Allow so many sessions at once; None = any number."""
        if POSTGRES:
            self._run(f"ALTER ROLE {self.name} CONNECTION LIMIT {-1 if sessions is None else sessions}")
        else:
            self._run(f"ALTER USER '{self.name}'@'%%' WITH MAX_USER_CONNECTIONS {sessions or 0}")

    def sessions(self):
        """How many sessions it has now, as the server counts."""
        source, user = {
            "postgres": ("pg_stat_activity", "usename"),
            "mysql": ("performance_schema.threads", "processlist_user"),
            "mariadb": ("information_schema.processlist", "user"),
        }[VENDOR]
        return self._run(f"SELECT COUNT(*) FROM {source} WHERE {user} = '{self.name}'")[0][0]

    def drop(self):
        """Forget the account."""
        if not POSTGRES:
            self._run(f"DROP USER IF EXISTS '{self.name}'@'%%'")
        elif self._run(f"SELECT 1 FROM pg_roles WHERE rolname = '{self.name}'"):
            self._run(f"DROP OWNED BY {self.name}")
            self._run(f"DROP ROLE {self.name}")

    def _run(self, statement):
        with connection.cursor() as cursor:
            cursor.execute(statement.replace("%%", "%"))
            return cursor.fetchall() if cursor.description else []

"""python -m tests.chaos.one FOLDER --seed N: one trial in a database of its own, on the server of JOBQUEUE_TEST_DB.

FOLDER gets result.json, the log, the journal and the output of all processes.
"""

import argparse
import json
import os
import signal
import sys
from pathlib import Path


def main(arguments):
    """Exit status 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.one", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", required=True)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--only", type=lambda text: {int(n) for n in text.split(",") if n}, metavar="NUMBER,...")
    parser.add_argument("--no-outages", action="store_true")
    options = parser.parse_args(arguments)
    # One that ended before it could remove its database has had another name.
    name = f"chaos_{options.seed}_{os.getpid()}"
    sqlite = os.environ.get("JOBQUEUE_TEST_DB", "sqlite") == "sqlite"
    os.environ["JOBQUEUE_TEST_NAME"] = str(options.folder / "database") if sqlite else name
    os.environ["JOBQUEUE_TEST_LOG"] = str(options.folder / "log")
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.chaos.settings"
    # Whoever ends it early wants its workers ended too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    import django

    django.setup()
    with database(name, sqlite):
        result = carry_out(options)
    (options.folder / "result.json").write_text(json.dumps(result))
    return int(bool(result["violations"]))


class database:
    """The database of a trial: made, migrated, recorded by triggers, and dropped."""

    def __init__(self, name, sqlite):
        self._name, self._sqlite = name, sqlite

    def __enter__(self):
        from django.core.management import call_command

        from tests.proofs import audit

        self._run(f"CREATE DATABASE {self._name}")
        call_command("migrate", run_syncdb=True, verbosity=0)
        audit.start()

    def __exit__(self, *raised):
        from django.db import connections

        connections.close_all()
        self._run(f"DROP DATABASE {self._name}")

    def _run(self, statement):
        from django.db import connection

        if self._sqlite:
            return
        if connection.vendor == "mysql" and statement.startswith("CREATE"):
            statement += " CHARACTER SET utf8mb4"
        elif connection.vendor == "postgresql" and statement.startswith("DROP"):
            statement += " WITH (FORCE)"
        with connection._nodb_cursor() as cursor:
            cursor.execute(statement)


def carry_out(options):
    """The result of the trial."""
    from tests.chaos import faults
    from tests.chaos.trial import Trial
    from tests.servers import control
    from tests.settings import VENDOR

    server = None if VENDOR == "sqlite" else control.load().get(VENDOR)
    outages = not options.no_outages and server is not None and server.controllable
    planned = faults.schedule(VENDOR, options.seed, options.seconds, outages)
    if options.only is not None:
        planned = [fault for fault in planned if fault.number in options.only]
    trial = Trial(options.folder, options.seed, options.seconds, planned)
    trial.run()
    return trial.result()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""python -m tests.proofs.load THREADS: every verb until standard input ends, and then how often each ran."""

from __future__ import annotations

import sys
import threading
from collections import Counter

import django

# What two threads of a load may do to each other, and a caller would try again.
PASSING = ("DatabaseBusy", "InProgress", "OperationalError")


def main(threads: int) -> int:
    """Exit status 1 when a step failed for another reason than load."""
    django.setup()
    from django.db import connections

    from tests.walk import STEPS

    ran, failures, ending = Counter(), [], threading.Event()

    def work(first: int) -> None:
        names = list(STEPS)
        try:
            while not ending.is_set() and not failures:
                name = names[first % len(names)]
                first += 1
                try:
                    STEPS[name]()
                    ran[name] += 1
                except Exception as error:
                    if type(error).__name__ not in PASSING or "3854" in str(error):
                        raise
        except BaseException as error:
            failures.append(f"{name}: {type(error).__name__}: {error}")
            raise
        finally:
            connections.close_all()

    workers = [threading.Thread(target=work, args=(number * 3,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    print("begun", flush=True)
    sys.stdin.read()
    ending.set()
    for worker in workers:
        worker.join()
    print(*(f"{name}={count}" for name, count in sorted(ran.items())), flush=True)
    for failure in failures:
        print(failure, file=sys.stderr)
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))

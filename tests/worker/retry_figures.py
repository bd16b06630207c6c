"""`python -m tests.worker.retry_figures` prints the tables and the other figures of docs/explanation/retries.md."""

import logging
import os

import django


def main():
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    django.setup()
    logging.disable()
    from tests.worker.retry_service import BURSTS, burst, outage

    for fixed_seconds in (None, 30):
        for budget in (False, True):
            print(*outage(budget=budget, fixed_seconds=fixed_seconds), sep="\n  ")
    for jobs, seconds in BURSTS:
        for budget in (False, True):
            row, looks = burst(jobs, seconds, budget=budget)
            print(row, *([f"{looks:,} looks"] if budget else []), sep="\n  ")


if __name__ == "__main__":
    main()

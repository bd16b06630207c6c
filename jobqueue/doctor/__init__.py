"""Checks the whole set-up of a queue and says how to repair what is wrong: examine().

Reads only: index seeks and lists with a limit, so that it takes less than two seconds however large the tables are.
A check is a function with a decorator, in the file of what it looks at; `jobs doctor` and the page of settings in the
admin run them by run_checks(). Stands above the rooms that it looks at. Runs in the process that calls it.
"""

from jobqueue.doctor.examination import examine
from jobqueue.doctor.finding import Finding, Level

__all__ = ["Finding", "Level", "examine"]

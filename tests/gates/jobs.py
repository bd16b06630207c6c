"""Functions that tests of gates make tasks of, with the limits that each test wants."""

#: what calls() raises, one exception for each run
ERRORS = []


def work(key=""):
    """Does nothing."""
    return key


def other(key=""):
    """A second one."""
    return key


def calls():
    """Calls a service that fails as often as ERRORS says."""
    if ERRORS:
        raise ERRORS.pop(0)


def by_argument(key):
    """The concurrency key of a job."""
    return key or None


WORK, OTHER, CALLS = (f"{__name__}.{function.__name__}" for function in (work, other, calls))

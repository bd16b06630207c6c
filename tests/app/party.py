"""Tasks with limits of their code, which workers would look at in all tests: only workers of a party import them."""

from jobqueue import task
from tests.app import tasks


@task(concurrency_key=lambda key: key, concurrency_limit=1)
def limited(key):
    """One at a time of each key."""


@task(concurrency_key=lambda key, path: key, concurrency_limit=1)
def gated_limited(key, path):
    """One at a time of each key; it runs until a file appears."""
    tasks.gated.func(path)


@task(takes_context=True)
def fails_once(context):
    if context.attempt == 1:
        raise ValueError("the first attempt")

"""The job of the django-tasks-db column; a module of its own because workers import it by name."""

from django_tasks import task

from benchmarks.effects import effect


@task()
def job(number):
    """Record the start."""
    effect(number)

"""The figures of the whole queue for Prometheus, read from the database; those of one worker are its probe's.

Imported by a project's urls.py. Runs in web processes; prometheus-client is imported with the first answer.
"""

from jobqueue.metrics.serving import view

__all__ = ["view"]

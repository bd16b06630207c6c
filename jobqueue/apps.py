"""The app configuration."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class JobQueueConfig(AppConfig):
    """The app: INSTALLED_APPS += ["jobqueue"]."""

    name = "jobqueue"
    verbose_name = _("Job queue")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the system checks, and the receivers that write log lines and lock statistics."""
        from jobqueue import checks, log_format
        from jobqueue.db.retry import observe_refusals
        from jobqueue.lockstats import recorder
        from jobqueue.signals import transaction_retried

        checks.register()
        log_format.connect()
        transaction_retried.connect(recorder.record_deadlock, dispatch_uid="jobqueue.locks")
        observe_refusals(recorder.refused)

"""Alarms: which thresholds of the settings were reached, since when, and who was told."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from jobqueue.db.fields import NameField, UnsignedBigAutoField, UtcDateTimeField


class JobAlarm(models.Model):
    """One figure of one queue that has reached its threshold at least once. Each time that it fires is an incident."""

    id = UnsignedBigAutoField(primary_key=True)
    # "" = the alarm is about workers.
    queue = NameField(_("queue"), max_length=64)
    name = NameField(_("name"), max_length=32)
    firing = models.BooleanField(_("firing"), default=False)
    # Looks in a row that found the figure on the other side of its threshold.
    looks = models.IntegerField(_("looks in a row"), default=0)
    value = models.FloatField(_("value"), default=0.0)
    threshold = models.FloatField(_("threshold"), default=0.0)
    # The names of the workers or schedules that the figure counted when it was last at its threshold: some of them.
    about = models.JSONField(_("about"), default=list)
    # Of the incident that fires, or of the last one.
    incident = models.BigIntegerField(_("incident"), default=0)
    since = UtcDateTimeField(_("since"), null=True)
    ended_at = UtcDateTimeField(_("ended at"), null=True)
    looked_at = UtcDateTimeField(_("last look"), null=True)
    # rising_age_seconds: the oldest age at the last look, and since when it has grown.
    last_age = models.FloatField(_("last age"), null=True)
    rising_since = UtcDateTimeField(_("rising since"), null=True)
    # What is to be told, and how far it was told to whom: alarms.notices.
    notices = models.JSONField(_("notices"), default=list)
    # The next try to tell; NULL if there is nothing to tell.
    send_at = UtcDateTimeField(_("next notice at"), null=True)
    # Since when it is of no interest any more; NULL while it fires, or may be about to.
    quiet_at = UtcDateTimeField(_("quiet since"), null=True)

    class Meta:
        db_table = "job_alarm"
        verbose_name = _("alarm")
        verbose_name_plural = _("alarms")
        default_permissions = ("view",)
        constraints = [models.UniqueConstraint(fields=["queue", "name"], name="uq_job_alarm")]
        indexes = [
            # alarms.looking: those that fire or may be about to; maintenance.cleaner: the oldest of the others
            models.Index(fields=["quiet_at"], name="ix_job_alarm_quiet"),
            # alarms.delivery: what is to be told next
            models.Index(fields=["send_at"], name="ix_job_alarm_send"),
        ]

    def __str__(self) -> str:
        return f"{self.name} of {self.queue or 'workers'}"

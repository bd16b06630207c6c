"""The job table, readable and writable by any program that speaks SQL, and the attempts that ended without success."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from jobqueue.db.clock import UtcNow
from jobqueue.db.fields import (
    ErrorField,
    JobIdField,
    KeyField,
    NameField,
    PayloadField,
    TinyIntegerField,
    TokenField,
    UnsignedBigAutoField,
    UtcDateTimeField,
)

DEPENDENCY_CHARS = 64
#: unique_mode: a job holds its dedupe key for DEDUPE_SECONDS after its end, until its first claim, or until its end
WINDOW, WAITING, UNFINISHED = 0, 1, 2
#: the gate of a job that waits for retry() or discard() after a crash (on_crash="hold"), and its wait_reason
HELD_GATE, HELD_REASON = 2, "held: its worker process died, or its lease ran out"
#: the wait_reason of a held job whose run in a process of its own was interrupted, as by a deploy
ALONE_REASON = "held: it is to run in a process of its own"
#: the wait_reason of a FAILED job that has killed as many workers as it may
QUARANTINED = "quarantined"


def _lease(*, given: bool) -> Q:
    columns = ("locked_by", "lock_token", "locked_at", "lock_until")
    return Q(**{f"{column}__isnull": not given for column in columns})


class JobQuerySet(models.QuerySet[Any]):
    """Job.objects: filters by state. They only read, so their names are adjectives."""

    def ready(self) -> JobQuerySet:
        """Waiting: due, delayed, gated or parked."""
        return self.filter(status=0)

    def due(self) -> JobQuerySet:
        """Waiting and allowed to run now, by the database's clock."""
        return self.filter(status=0, gate=0, run_at__lte=UtcNow())

    def leased(self) -> JobQuerySet:
        """Held by a worker."""
        return self.filter(status=1)

    def tagged(self, tag: str) -> JobQuerySet:
        """The jobs with this tag, compared byte for byte."""
        from jobqueue.models.tag import JobTag

        return self.filter(pk__in=JobTag.objects.using(self.db).filter(tag=tag).values("job_id"))

    def lapsed(self) -> JobQuerySet:
        """Held, but the lease has lapsed: reap takes these."""
        return self.filter(status=1, lock_until__lt=UtcNow())

    def dead(self) -> JobQuerySet:
        """FAILED: no attempt left, or a result that could not be stored."""
        return self.filter(status=3)


class JobColumns(models.Model):
    """The columns of a job. Every column that plain SQL may leave out has a database default.

    job_archive has them too, but for those that models/archive.py leaves out.
    """

    class Status(models.IntegerChoices):
        """The five states. Scheduled, retrying, blocked and parked jobs are READY with a wait_reason."""

        READY = 0, _("ready")
        PROCESSING = 1, _("processing")
        DONE = 2, _("done")
        FAILED = 3, _("failed")
        CANCELED = 4, _("canceled")

    id = UnsignedBigAutoField(primary_key=True)
    queue = NameField(_("queue"), max_length=64)
    status = TinyIntegerField(_("status"), choices=Status.choices, default=Status.READY, db_default=0)
    priority = models.IntegerField(_("priority"), db_default=0)
    run_at = UtcDateTimeField(_("run at"), db_default=UtcNow())
    attempts = models.IntegerField(_("attempts"), db_default=0)
    max_attempts = models.IntegerField(_("max attempts"), db_default=25)
    payload = PayloadField(_("payload"))
    result = PayloadField(_("result"), null=True)
    last_error = ErrorField(_("last error"), null=True)
    cause = NameField(_("cause"), max_length=16, null=True)
    # Equal for failures of the same kind: failures/text.py. NULL if plain SQL wrote the failure.
    fingerprint = NameField(_("fingerprint"), max_length=16, null=True)

    locked_by = NameField(_("locked by"), max_length=128, null=True)
    lock_token = TokenField(_("lock token"), null=True)
    locked_at = UtcDateTimeField(_("locked at"), null=True)
    lock_until = UtcDateTimeField(_("lock until"), null=True)
    # The lease a task asks for; a claim takes the longer of this and its own.
    lease_seconds = models.FloatField(_("lease seconds"), null=True)
    fence = models.BigIntegerField(_("fence"), db_default=0)

    # No attempt begins after this; the next claim of the job ends it.
    expires_at = UtcDateTimeField(_("expires at"), null=True)
    # How this job differs from its task: tasks/options.py.
    options = PayloadField(_("options"), null=True)
    # The newest progress of the job: {"done": 3, "total": 10, "note": "..."}.
    progress = PayloadField(_("progress"), null=True)

    dedupe_key = KeyField(_("dedupe key"), null=True)
    # The key a newer job took over; retry must not bring this job back while that one lives.
    released_key = KeyField(_("released key"), null=True)

    # How long it holds its key: WINDOW, WAITING or UNFINISHED, and seconds from created_at (NULL: as the mode says).
    unique_mode = TinyIntegerField(_("unique mode"), db_default=0)
    unique_seconds = models.FloatField(_("unique seconds"), null=True)

    # Jobs of one queue with the same one run strictly one after another: models/ordering.py.
    ordering_key = KeyField(_("ordering key"), null=True)

    # Of its task's concurrency_limit or rate_limit: jobs of one queue with the same one share them.
    concurrency_key = KeyField(_("concurrency key"), null=True)

    task = NameField(_("task"), max_length=255, null=True)
    # The outside service that its run needs.
    dependency = NameField(_("dependency"), max_length=DEPENDENCY_CHARS, null=True)
    gate = TinyIntegerField(_("gate"), db_default=0)
    wait_reason = NameField(_("wait reason"), max_length=200, null=True)

    # How many attempts one life of the job has; kept because retry raises max_attempts.
    allowance = models.IntegerField(_("allowance"), null=True)
    crashes = models.IntegerField(_("crashes"), db_default=0)
    epoch = models.IntegerField(_("epoch"), db_default=0)
    cancel_requested_at = UtcDateTimeField(_("cancel requested at"), null=True)
    last_started_at = UtcDateTimeField(_("last started at"), null=True)
    last_worker = NameField(_("last worker"), max_length=128, null=True)

    created_at = UtcDateTimeField(_("created at"), db_default=UtcNow())
    updated_at = UtcDateTimeField(_("updated at"), db_default=UtcNow())
    finished_at = UtcDateTimeField(_("finished at"), null=True)

    class Meta:
        abstract = True


class Job(JobColumns):
    """A job."""

    objects = JobQuerySet.as_manager()

    class Meta:
        db_table = "job_queue"
        verbose_name = _("job")
        verbose_name_plural = _("jobs")
        default_permissions = ("view",)
        permissions = [
            ("retry_job", "Can retry jobs"),
            ("cancel_job", "Can cancel jobs"),
            ("discard_job", "Can discard jobs"),
            ("release_job", "Can release leases"),
            ("edit_job", "Can change waiting jobs"),
            ("prune_jobs", "Can delete ended jobs"),
            ("view_payload", "Can view payloads and results"),
        ]
        indexes = [
            # claim: candidates.due(). Equality up to priority, then the order of the claim: no sort, no extra locks.
            models.Index(fields=["queue", "status", "gate", "priority", "run_at", "id"], name="ix_pick"),
            # reap: transitions.reap(), and the live states of the admin
            models.Index(fields=["status", "lock_until"], name="ix_lease"),
            # who holds what: transitions.held_by()
            models.Index(fields=["locked_by", "status"], name="ix_worker"),
        ]
        constraints = [
            models.UniqueConstraint(fields=["queue", "dedupe_key"], name="uq_queue_dedupe"),
            models.CheckConstraint(condition=Q(status__range=(0, 4)), name="ck_job_status"),
            # A PROCESSING row without an end of its lease could never be reaped; a lease on another row has no holder.
            models.CheckConstraint(
                condition=Q(_lease(given=True), status=1) | Q(~Q(status=1), _lease(given=False)), name="ck_job_lease"
            ),
        ]

    def __str__(self) -> str:
        return f"job {self.pk}"

    @property
    def attempt(self) -> int:
        """The number of the running or next attempt; of a finished job, of its last one."""
        return self.attempts if self.status == self.Status.FAILED else self.attempts + 1


#: a job in one of these states lets the next one of its ordering key run; after a FAILED one, ON_KEY_FAILURE decides
FREE_KEY = (Job.Status.DONE, Job.Status.CANCELED)


class JobAttempt(models.Model):
    """One failed or lost attempt, a run whose end the job requested (of several snoozes in one attempt, the newest), or
    one that was killed because it was canceled.

    Successful jobs write no row: their one attempt is on the job itself.
    """

    id = UnsignedBigAutoField(primary_key=True)
    job_id = JobIdField(_("job"))
    attempt = models.IntegerField(_("attempt"))
    fence = models.BigIntegerField(_("fence"))
    worker = NameField(_("worker"), max_length=128, null=True)
    started_at = UtcDateTimeField(_("started at"), null=True)
    ended_at = UtcDateTimeField(_("ended at"), db_default=UtcNow())
    cause = NameField(_("cause"), max_length=16)
    fingerprint = NameField(_("fingerprint"), max_length=16, null=True)
    error_class = NameField(_("error class"), max_length=255, default="")
    error = ErrorField(_("error"))
    # What the attempt has logged, capped; NULL when it logged nothing or logs are not kept.
    log = ErrorField(_("log"), null=True)

    class Meta:
        db_table = "job_attempt"
        verbose_name = _("attempt")
        verbose_name_plural = _("attempts")
        default_permissions = ("view",)
        indexes = [
            # the attempts of one job, in order: job page, task results
            models.Index(fields=["job_id", "id"], name="ix_attempt_job"),
        ]

    def __str__(self) -> str:
        return f"attempt {self.attempt} of job {self.job_id}: {self.cause}"

"""PROCESSING -> READY or CANCELED without using an attempt: given back, or because the job requested that end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from django.db import connections

from jobqueue.base.validation import check_seconds
from jobqueue.db import vendor
from jobqueue.db.clock import UtcNow, UtcNowPlus
from jobqueue.db.retry import Verb
from jobqueue.failures import storable
from jobqueue.models import Job, JobAttempt
from jobqueue.models.job import HELD_GATE, JobQuerySet
from jobqueue.models.rows import in_state
from jobqueue.requested import Requested
from jobqueue.signals import job_parked
from jobqueue.transitions.claiming.claimer import release_with
from jobqueue.transitions.failing import Also, Failure, attempt_row
from jobqueue.transitions.leases import RELEASED, Lease, by_token, canceled, check_lease, held
from jobqueue.transitions.verb import Portion, Signals, Written, ended_uncharged, run_verb

REASON_BYTES = 200


def snooze(lease: Lease, *, delay_seconds: float, reason: str = "snoozed", again: bool = False) -> Job.Status:
    """Give the job back for `delay_seconds` from now without using an attempt; READY. Raises LeaseLost like ack.

    CANCELED if the job was asked to cancel, since it does not wait for another run. `again`: an earlier call with this
    lease ended in an error and may have been committed all the same; then the lease is not reported as lost.
    """
    check_lease(lease)
    portion = Portion(lease.using, partial(_give_back, lease, _snoozed(delay_seconds, reason)), [lease])
    return run_verb("snooze", [portion], _parked(reason), again=again).status()


def snooze_many(leases: Sequence[Lease], *, delay_seconds: float, reason: str) -> list[Lease]:
    """snooze() for each lease; returns those that were lost and never raises for them."""
    return _give_back_many("snooze", leases, _snoozed(delay_seconds, reason), _parked(reason))


def release(lease: Lease) -> Job.Status:
    """Give the job back at once, run_at unchanged, without using an attempt; READY. Raises LeaseLost like ack.

    CANCELED if the job was asked to cancel.
    """
    check_lease(lease)
    portion = Portion(lease.using, partial(_give_back, lease, _released(None)), [lease])
    return run_verb("release", [portion], {}).status()


def release_many(leases: Sequence[Lease]) -> list[Lease]:
    """release() for each lease; returns those that were lost and never raises for them."""
    return _give_back_many("release", leases, _released(None), {})


def hold_many(leases: Sequence[Lease], reason: str) -> list[Lease]:
    """release() for each lease, but no worker takes the job before retry(); returns those that were lost."""
    return _give_back_many("release", leases, _released(storable(reason, REASON_BYTES)) | {"gate": HELD_GATE}, {})


def cancel_held(lease: Lease, *, again: bool = False) -> None:
    """PROCESSING -> CANCELED by its holder: the body stopped for a cancel request. Raises LeaseLost like ack.

    `again` as in snooze().
    """
    run_verb("cancel", [Portion(lease.using, partial(_cancel, lease), [lease])], {}, again=again).status()


def _give_back(lease: Lease, changes: dict[str, object], tries: int) -> Written:
    """One UPDATE for nearly every job; a second one where the job was asked to cancel."""
    if held(lease).filter(cancel_requested_at__isnull=True).update(**changes):
        return {Job.Status.READY: [lease]}
    if held(lease).filter(cancel_requested_at__isnull=False).update(**canceled()):
        return {Job.Status.CANCELED: [lease]}
    return _by_earlier_try([lease], tries)


def _cancel(lease: Lease, tries: int) -> Written:
    if held(lease).update(**canceled()):
        return {Job.Status.CANCELED: [lease]}
    found = _by_earlier_try([lease], tries)
    return {status: leases for status, leases in found.items() if status is Job.Status.CANCELED}


def _give_back_many(verb: Verb, leases: Sequence[Lease], changes: dict[str, object], signals: Signals) -> list[Lease]:
    lost: list[Lease] = []
    for group in by_token(leases).values():
        # Each by itself: if a later one fails, the signals of the earlier ones have been sent.
        portion = Portion(group[0].using, partial(_give_back_group, group, changes), group)
        lost += run_verb(verb, [portion], signals).lost
    return lost


def _give_back_group(group: Sequence[Lease], changes: dict[str, object], tries: int) -> Written:
    """Leases of one token, in one transaction."""
    using, token = group[0].using, group[0].token

    def rows(job_ids: Iterable[int]) -> JobQuerySet:
        return in_state(job_ids, Job.Status.PROCESSING, using=using).filter(lock_token=token)

    with vendor(using).transaction(connections[using]):
        held_now = rows(lease.job_id for lease in group).order_by("pk").select_for_update()
        asked = dict(held_now.values_list("pk", "cancel_requested_at"))
        waiting = [job_id for job_id, asked_at in asked.items() if asked_at is None]
        ending = [job_id for job_id, asked_at in asked.items() if asked_at is not None]
        if waiting:
            rows(waiting).update(**changes)
        if ending:
            rows(ending).update(**canceled())
    missing = [lease for lease in group if lease.job_id not in asked]
    found = {status: list(leases) for status, leases in _by_earlier_try(missing, tries).items()}
    for lease in group:
        if lease.job_id in asked:
            status = Job.Status.READY if asked[lease.job_id] is None else Job.Status.CANCELED
            found.setdefault(status, []).append(lease)
    return found


def _by_earlier_try(leases: Sequence[Lease], tries: int) -> Written:
    """Those of `leases` that an earlier try has given back: its commit may have been done without an answer."""
    if tries == 1 or not leases:
        return {}
    statuses = ended_uncharged(leases, using=leases[0].using)
    found: dict[Job.Status, list[Lease]] = {}
    for lease in leases:
        if lease.job_id in statuses:
            found.setdefault(statuses[lease.job_id], []).append(lease)
    return found


def _released(reason: str | None) -> dict[str, object]:
    return {"status": Job.Status.READY, "updated_at": UtcNow(), "wait_reason": reason, **RELEASED}


def _snoozed(delay_seconds: float, reason: str) -> dict[str, object]:
    seconds = check_seconds(delay_seconds, "delay_seconds", zero=True)
    return _released(storable(reason, REASON_BYTES)) | {"run_at": UtcNowPlus(seconds)}


def _parked(reason: str) -> Signals:
    return {Job.Status.READY: [(job_parked, {"reason": reason})]}


release_with(release_many)


class _Run(NamedTuple):
    """A run that ended so, as it is to be written."""

    lease: Lease
    changes: dict[str, Any]  # of a job that was not asked to cancel
    row: JobAttempt


def end_as_requested(
    lease: Lease, requested: Requested, *, log: str | None = None, also: Also | None = None, again: bool = False
) -> Job.Status:
    """Write the end that the job requested, and keep the run in JobAttempt. Raises LeaseLost like ack.

    READY after delay_seconds, unless the job was asked to cancel; or CANCELED with the text as last_error, where
    `cause` and `fingerprint` become NULL, because that is no failure. `also` (for READY) and `again` as in fail().
    """
    end, text, kind, delay = requested
    signals: Signals = {}
    if delay is None:
        changes = canceled() | {"last_error": text, "cause": None, "fingerprint": None}
    else:
        changes = _snoozed(delay, end.outcome.value)
        if also is not None and also.options is not None:
            changes["options"] = also.options
        if end.signal is not None:
            signals = {Job.Status.READY: [(end.signal, {"delay_seconds": delay})]}
    row = attempt_row(lease, Failure(end.outcome.value, text, kind), log)
    portion = Portion(lease.using, partial(_write_run, _Run(lease, changes, row)), [lease])
    return run_verb("snooze" if end.again else "discard", [portion], signals, again=again).status()


def _write_run(run: _Run, tries: int) -> Written:
    lease, changes, row = run
    using, status = lease.using, Job.Status(changes["status"])
    with vendor(using).transaction(connections[using]):
        if held(lease).filter(cancel_requested_at__isnull=True).update(**changes):
            _keep_attempt(row, using, once=status is Job.Status.READY)
        elif held(lease).update(**(changes if status is Job.Status.CANCELED else canceled())):
            _keep_attempt(row, using, once=status is Job.Status.READY)
            status = Job.Status.CANCELED
        elif tries > 1 and (found := _run_by_earlier_try(lease, row, status)) is not None:
            status = found
        else:
            return {}
    return {status: [lease]}


def _keep_attempt(row: JobAttempt, using: str, *, once: bool) -> None:
    """Keep the run; `once`: in place of an earlier one of this attempt, because a job may snooze for days."""
    earlier = None
    if once:
        rows = JobAttempt.objects.using(using).filter(job_id=row.job_id)
        earlier = rows.filter(attempt=row.attempt, cause=row.cause).values_list("pk", flat=True).first()
    if earlier is None:
        row.save(using=using, force_insert=True)
        return
    # By its key, so that no row or gap of another job is locked.
    columns = ("fence", "worker", "started_at", "error", "log")
    same = JobAttempt.objects.using(using).filter(pk=earlier)
    same.update(ended_at=UtcNow(), **{name: getattr(row, name) for name in columns})


def _run_by_earlier_try(lease: Lease, row: JobAttempt, meant: Job.Status) -> Job.Status | None:
    """What an earlier try, whose commit was not answered, made of the job; None if there was none."""
    rows = JobAttempt.objects.using(lease.using).filter(job_id=lease.job_id, fence=lease.fence, cause=row.cause)
    if not rows.exists():
        return None
    now = Job.objects.using(lease.using).filter(pk=lease.job_id, fence=lease.fence, status=Job.Status.CANCELED)
    return Job.Status.CANCELED if now.exists() else meant

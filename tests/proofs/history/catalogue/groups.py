"""Schedules, groups and workflows, and how long what has ended stays."""

from __future__ import annotations

from tests.proofs.history.catalogue.mutant import mutant

SCHEDULES = [
    mutant(
        "a schedule that no worker announces any more goes on firing",
        "schedules/firing.py",
        "_due",
        "Q(source=Schedule.Source.ADMIN) | Q(announced_at__gte=UtcNowPlus(-UNANNOUNCED_SECONDS))",
        "Q(announced_at__isnull=False) | Q(source=Schedule.Source.ADMIN)",
        "tests/schedules/test_versions.py",
    ),
    mutant(
        "a job that waits does not count as one that has not ended",
        "schedules/firing.py",
        "_runs",
        "Q(status=Job.Status.READY) | Q(status=Job.Status.PROCESSING)",
        "Q(status=Job.Status.PROCESSING)",
        "tests/schedules/test_firing.py",
    ),
    mutant(
        "one tick more waits than may be missed",
        "schedules/firing.py",
        "_let_wait",
        "len(waiting) - definition.missed_limit)",
        "len(waiting) - definition.missed_limit - 1)",
        "tests/schedules/test_firing.py",
    ),
    mutant(
        "a schedule that is enabled fires what was due while it was disabled",
        "schedules/by_hand.py",
        "_enable",
        "row.decided_until = row.now",
        "pass",
        "tests/schedules/test_by_hand.py",
    ),
    mutant(
        "the last tick, at the end of a schedule, is left out",
        "schedules/timing.py",
        "Timing.after",
        "tick <= self.end_at",
        "tick < self.end_at",
        "tests/schedules/test_timing.py",
    ),
    mutant(
        "the older version of a schedule is in force during a deploy",
        "schedules/versions.py",
        "settle",
        'live.order_by("seen_at", "pk")',
        'live.order_by("-seen_at", "-pk")',
        "tests/schedules/test_versions.py",
    ),
    mutant(
        "schedules that were made by hand are retired",
        "schedules/versions.py",
        "retire",
        ".exclude(source=Schedule.Source.ADMIN)",
        ".all()",
        "tests/schedules/test_versions.py",
    ),
]

GROUPS = [
    mutant(
        "a group with a canceled member ends well",
        "grouping/ending.py",
        "_end",
        "select_for_update()[:1] for state in wrong)",
        "select_for_update()[:1] for state in wrong[:1])",
        "tests/groups/test_groups.py",
    ),
    mutant(
        "no other transaction is made to look for the end of a group",
        "grouping/ending.py",
        "_free",
        'vendor(using).lock_rows(rows).values_list("pk")',
        'rows.values_list("pk")',
        "tests/races/test_group_races.py",
        database="mysql",
    ),
    mutant(
        "on_done is not enqueued for a group that failed",
        "grouping/callbacks.py",
        "jobs_of",
        "for name in (SUCCESS if succeeded else FAILURE, DONE):",
        "for name in (SUCCESS, DONE) if succeeded else (FAILURE,):",
        "tests/groups/test_groups.py",
    ),
    mutant(
        "a canceled group takes new members",
        "grouping/members.py",
        "_add",
        "if group.state == JobGroup.State.ENDED or group.canceled_at is not None:",
        "if group.state == JobGroup.State.ENDED:",
        "tests/groups/test_groups.py",
        "tests/groups",
    ),
    mutant(
        "an empty group never ends",
        "groups/by_hand.py",
        "_seal",
        "end_if_last(number, using)",
        "pass",
        "tests/groups/test_groups.py",
    ),
    mutant(
        "a node runs again before its parent that still runs",
        "groups/resuming.py",
        "_waiting",
        "if parent in rerun or state == State.OUTSTANDING}",
        "if parent in rerun}",
        "tests/groups/test_workflows.py",
        "tests/groups/test_resume.py",
    ),
    mutant(
        "resume() runs a node again that was retried and is done",
        "groups/resuming.py",
        "_resume",
        "[job for job in jobs if job.status != Job.Status.DONE]",
        "list(jobs)",
        "tests/groups/test_resume.py",
    ),
]

RETENTION = [
    mutant(
        "a job is deleted whose dedupe key still counts",
        "retention/windows.py",
        "Limits.allow",
        "or (has_key and self.keys_before is not None and ended_at >= self.keys_before)",
        "",
        "tests/retention/test_pruner.py",
    ),
    mutant(
        "jobs of the last minute are deleted, from which rates are read",
        "retention/windows.py",
        "Limits.allow",
        "ended_at > self.young_since or (has_key",
        "(has_key",
        "tests/retention/test_pruner.py",
    ),
    mutant(
        "one job less is kept than the settings say",
        "retention/windows.py",
        "place_behind",
        'newest[0].values_list(_DUE_AT, "pk")[most : most + 1]',
        'newest[0].values_list(_DUE_AT, "pk")[most - 1 : most]',
        "tests/retention/test_pruner.py",
    ),
    mutant(
        "the tags of deleted jobs stay",
        "retention/deleting.py",
        "_delete_beside",
        '((JobTag, "ix_tag_job"), (JobAttempt, "ix_attempt_job"))',
        '((JobAttempt, "ix_attempt_job"),)',
        "tests/retention/test_by_hand.py",
    ),
    mutant(
        "a failed job for which its ordering key waits is deleted, and the key goes on",
        "retention/staying.py",
        "_others",
        "return {*blocking} | {job_id",
        "return {job_id",
        "tests/retention/test_pruner.py",
    ),
    mutant(
        "members of a group that has not ended are deleted",
        "retention/staying.py",
        "those_that_stay",
        "return _members(job_ids, using) | _others",
        "return _others",
        "tests/groups/test_repair.py",
    ),
    mutant(
        "a result that is kept for its dedupe key is deleted when its own time is over",
        "retention/results.py",
        "_sort",
        "max(ttls[job_id], holds)",
        "ttls[job_id]",
        "tests/retention/test_results.py",
    ),
]

MUTANTS = [*SCHEDULES, *GROUPS, *RETENTION]

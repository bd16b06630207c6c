"""Recorded runs: one verb for all jobs that match a filter, in steps that any worker may take.

job_filter says which jobs, verbs which of them a verb can change; walking finds these and previews a run. stepping
takes the next step of a run, in the monitor process of workers; redrive_steps and bulk_steps say what it does. alone
gives a job a process of its own.

dead_letters and bulk_verbs are the public faces; transitions and retention write the jobs.
"""

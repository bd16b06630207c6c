"""READY -> PROCESSING: which jobs a claim takes, and the statements that take them.

claimer.Claimer is the only way to claim. It makes passes; each follows one of the plans of plans.py: OneStatement, in
update_returning, or LockAndStamp and CheckEachJob, in select_then_update. candidates says which jobs, in which order,
and which low priorities come first because they have waited long. queue_memory has what earlier claims and looks have
shown, so that the next one reads few old index entries.

Where could a job be lost? A pass commits once, or with OneStatement after each statement: before it nothing has
changed; from it on the job has a lease in the name of the worker. If the answer to the commit is lost, the fetcher of a
worker (worker.child.fetcher) finds the lease by its name before its next claim and gives it back. Of other callers, and
of a worker that is gone, the lease runs out and is reaped. What is kept in
memory only decides where to look.

Imported by the transitions and by the children of a worker, where it runs.
"""

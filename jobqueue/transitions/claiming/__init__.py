"""READY -> PROCESSING: which jobs a claim takes, and the statements that take them.

claimer.Claimer is the only way to claim. It makes passes; each follows one of the plans of plans.py: OneStatement, in
update_returning, or LockAndStamp and CheckEachJob, in select_then_update. candidates says which jobs, in which order,
and which low priorities come first because they have waited long. queue_memory has what earlier claims and looks have
shown, so that the next one reads few old index entries.

Where could a job be lost? Each pass ends with a commit: before it nothing has changed; from it on the job has a lease
in the name of the worker. If the answer to the commit is lost, the worker finds the lease by its name before its next
claim (worker.child.fetcher) and gives it back; if the worker is gone, the lease runs out and is reaped. What is kept in
memory only decides where to look.

Imported by the transitions and by the children of a worker, where it runs.
"""

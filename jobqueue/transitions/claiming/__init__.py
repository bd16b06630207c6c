"""READY -> PROCESSING: which jobs a claim takes, and the statements that take them.

claimer.Claimer is the only way to claim; candidates says which jobs, in which order, and which low priorities come
first because they have waited long. request has what one pass asks for, and ends the jobs that are too late.
update_returning and select_then_update are the two forms of the write. queue_memory remembers where the queues began
and where the last claim ended, so that the next one reads few old index entries. Imported by the transitions and by the
children of a worker, where it runs.
"""

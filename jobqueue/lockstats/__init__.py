"""Lock statistics: what locks did, which transactions were redone, who waits for whom now, and deadlocks.

The recorder has the counters in memory and a thread that writes them down, in every process that has something to
count; report serves the admin and `manage.py jobs locks`. Imported by the locks; imports nothing of them.
"""

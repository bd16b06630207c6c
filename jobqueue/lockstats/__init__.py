"""Lock statistics: what locks did, which transactions were redone, who waits for whom now, and deadlocks.

Counters in memory and a thread that writes them down live in every process that has something to count; report and
wording serve the admin and `manage.py jobs locks`. Imported by the locks; imports nothing of them.
"""

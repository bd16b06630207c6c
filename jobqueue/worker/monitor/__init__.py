"""The monitor process of a worker: it renews leases, settles the jobs of dead children, reaps and cleans up.

chores is the table of what it does for the whole database; reap_leases walks the same table. probe serves /metrics and
the health checks over HTTP from the scoreboard. It runs no code of the project's jobs. Only the supervisor starts it.
"""

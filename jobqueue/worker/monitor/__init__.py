"""The monitor process of a worker: it renews leases, settles the jobs of dead children, reaps and cleans up.

housekeeping lists what it does for the whole database; probe serves /metrics and the health checks over HTTP from the
scoreboard. It runs no code of the project's jobs. Only the supervisor starts it.
"""

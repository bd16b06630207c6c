"""The monitor process of a worker: it renews leases, settles dead children, reaps and keeps house.

It runs no code of the project's jobs. Only the supervisor starts it.
"""

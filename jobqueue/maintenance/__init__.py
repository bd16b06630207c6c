"""Chores that keep the tables small and jobs moving: each has run_once(settings, using=...), which returns its counts.

The table in worker.monitor.chores lists them. The monitor process of a worker and `manage.py reap_leases` walk it; any
number of processes may do the same chore at once.
"""

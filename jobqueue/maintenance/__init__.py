"""Chores that keep the tables small and jobs moving: each has run_once(settings, using=...), which returns its counts.

The monitor process of a worker and `manage.py reap_leases` call them in their loops; any number may run at once.
"""

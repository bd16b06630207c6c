"""What a running job may ask and say: its context, progress, log lines; guards against writes to two databases.

Imports the transitions. Used by jobs, so in children of a worker and in the testing kit.
"""

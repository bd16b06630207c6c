"""What a running job may use: its context, progress and log lines, and guards against writes to two databases.

Imports the transitions. Used by jobs, so it runs in the children of a worker and in the testing kit; the guards also in
transactions of the project.
"""

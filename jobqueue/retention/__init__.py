"""Retention: ended jobs are deleted, with their attempts, when they are old or many enough, in short transactions.

Imported by maintenance, whose pruner deletes all the time, and by `jobs prune`. Runs in the process that calls it.
"""

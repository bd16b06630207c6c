"""Ordering keys: jobs of one queue and key run strictly one after another.

The producer appends jobs to the lane of their key; the transitions call promote.promote_next() after every change that
may free the next job of a key. Imported by both. Runs in any process that enqueues, settles or sweeps.
"""

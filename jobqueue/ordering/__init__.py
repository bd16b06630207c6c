"""Ordering keys: jobs of one queue and key run strictly one after another.

Below the transitions, which call advance.go_on() whenever the head of a key may have changed; the producer adds jobs
to the ends of their lanes. Runs in whatever process enqueues, settles or sweeps.
"""

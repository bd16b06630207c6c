"""Limits, rates, breakers, pauses and full queues under real faults."""

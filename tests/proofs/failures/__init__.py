"""Causes, outcomes, redrives and retries of failed jobs. An app too: workers of these proofs find its tasks."""

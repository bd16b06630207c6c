"""Deletion of ended jobs, at full size and under load."""

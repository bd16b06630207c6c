"""Alarms: when they begin and end, and who is told."""

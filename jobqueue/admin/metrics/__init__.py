"""The page of metrics: what ended in hours, days and weeks, in all queues or in one, and how long it waited and ran."""

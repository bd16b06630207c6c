"""The audit: who did what to which jobs, and the page that starts one verb for all jobs that match a filter."""

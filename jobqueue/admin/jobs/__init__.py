"""The list of jobs, the page of a job, and the verbs of jobs."""

"""The "Must show" lines of the issues: short in the suite, full size with JOBQUEUE_PROVE=1 (make prove)."""

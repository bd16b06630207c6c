"""The list of workers with the jobs they hold, and the page of a worker with the stacks of its threads."""

"""What a task is: @task and @handler, their options, payload versions and registry, and a job as a TaskResult.

conf.task_spec has the options of @task, options those that a job stores for its worker. Imports the transitions and the
context of a running job; imported by everything that enqueues or runs tasks. Runs in the project's processes and in
the children of a worker.
"""

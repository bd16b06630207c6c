"""What a task is: @task, @handler, their options and versions, the registry, and a job as a TaskResult.

May be imported by everything that enqueues or runs tasks; imports the transitions and the context of a running job.
Runs in the project's processes and in the worker's children.
"""

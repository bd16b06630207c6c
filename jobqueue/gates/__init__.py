"""Gates: what jobs wait for besides their ordering key: limits, paused tasks and circuit breakers.

A limit belongs to a subject: a queue, a task in it, or one concurrency key. `limits` says which limits a subject has.
`kinds` has a row for each kind of limit: what stops its jobs, what they wait for, and how they are let in. `admit` asks
for the slots and tokens of all of them before a claim stamps jobs, so no limit can be passed whatever else goes wrong;
it takes what others keep locked for used up, so nobody waits for a lock. The limits of a queue tell the claim how many
jobs it may look at. Jobs that may not start because of a limit of their task or key wait behind a closed gate, unseen
by claims, until `waiting` and `timing` open as many as may start. Whatever a crash leaves undone,
maintenance.gate_sweep repairs.
"""

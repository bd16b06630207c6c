"""Members of groups, and the end of a group: written in the transactions of others, which end members.

The row of a group is locked by a transaction that finds no other member to be outstanding, never by one that does, so
that members of one group end side by side. jobqueue.groups has the public functions.
"""

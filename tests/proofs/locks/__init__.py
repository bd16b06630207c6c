"""Every kind of lock, with processes that contend, freeze and die."""

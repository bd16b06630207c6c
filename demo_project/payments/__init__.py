"""Payments: jobs that need an outside service, and the service, which can be switched off."""

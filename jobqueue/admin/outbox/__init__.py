"""The list of events of the outbox and the page of an event."""

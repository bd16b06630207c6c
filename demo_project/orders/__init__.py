"""A shop whose orders reach its stock through the outbox and an inbox."""

"""What the management commands share: arguments, environment defaults, log lines."""

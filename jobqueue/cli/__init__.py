"""What the management commands use: arguments, set-up of the process, and the sub-commands of `jobs`."""

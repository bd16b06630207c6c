"""What the management commands use: arguments, output, set-up of the process, and the sub-commands of `jobs`."""

"""Read by mypy, never run: an "ignore" that ignores nothing is an error, so each marks what mypy must refuse."""

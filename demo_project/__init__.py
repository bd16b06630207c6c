"""A small Django project that uses jobqueue: `make demo`, `make serve`."""

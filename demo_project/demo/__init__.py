"""The commands behind `make demo` and `make serve`."""

"""MySQL 8.0 and later; MariaDB inherits most of it. Only `jobqueue.db` imports this package."""

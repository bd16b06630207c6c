"""MySQL 8.0.17 and later; MariaDB inherits most of it. Only `jobqueue.db` imports this package."""

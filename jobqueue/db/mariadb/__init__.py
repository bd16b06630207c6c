"""MariaDB 10.6 and later: MySQL with differences. Only `jobqueue.db` imports this package."""

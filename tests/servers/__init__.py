"""Private MySQL, MariaDB, PostgreSQL and Redis servers for the test-suite."""

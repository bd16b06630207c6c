"""The page of the settings in force, of the database, and of the checks."""

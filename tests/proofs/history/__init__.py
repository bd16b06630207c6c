"""Whether the tests would have noticed: on the commits before each fix, and on code that is broken on purpose."""

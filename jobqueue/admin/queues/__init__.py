"""The list of queues and circuit breakers, and the pages that pause, drain and limit them."""

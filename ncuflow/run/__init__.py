"""A run: points of a kernel target built, checked, timed, traced and profiled, and what this machine can do."""

OK, FATAL, SOME_FAILED, LOST = 0, 1, 3, 4  # the statuses that its commands end with

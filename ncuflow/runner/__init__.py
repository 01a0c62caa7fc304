"""A run: one process, many points of one kernel target: build, check, time or trace."""

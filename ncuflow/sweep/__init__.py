"""A sweep: points from settings, test lists, traces and dumps."""

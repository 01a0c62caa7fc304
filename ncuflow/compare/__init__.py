"""A comparison: two evidences become changes with statistics and causes."""

"""Verbs: a typed function for each, from which the command line is made."""

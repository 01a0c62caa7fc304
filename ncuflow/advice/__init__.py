"""Advice: which choice for which shape, by a race of all that is legal there."""

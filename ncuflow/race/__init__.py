"""A race: variants timed in turns, until it is known which are faster."""

EFFECT = 0.02  # of 1: a smaller difference does not matter

"""A race: variants timed in turns, until it is known which are faster."""

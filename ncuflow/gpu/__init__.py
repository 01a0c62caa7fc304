"""A GPU: what is published of it, what it says of itself, and whose turn at it it is."""

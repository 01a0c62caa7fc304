"""A capture: ncu and nsys runs, locks, the preflight."""

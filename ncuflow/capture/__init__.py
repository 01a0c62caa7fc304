"""A capture: ncu and nsys runs, locks, the preflight, what may be stored, recordings."""

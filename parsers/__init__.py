"""Reports of ncu and nsys, and the timing records, as tidy tables of a documented schema."""

"""Results in the formats of other tools."""

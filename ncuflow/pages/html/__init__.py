"""The evidence of a run, or of a comparison, in one HTML file."""

"""A run of the pipeline: its evidence, settings, jobs, inputs from the import closure, display."""

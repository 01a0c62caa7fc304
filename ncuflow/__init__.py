"""Measured kernel guides for FlashInfer: a pipeline over Nsight Compute and Nsight Systems.

In a checkout, ``parsers`` and ``targets`` and the folders below ``data`` are links to the folders
beside this package; an installed copy holds the folders themselves.
"""

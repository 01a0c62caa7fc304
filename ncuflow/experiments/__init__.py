"""Experiments on a GPU: a change of FlashInfer tried, the choices of a shape advised, tunables searched, versions bisected."""

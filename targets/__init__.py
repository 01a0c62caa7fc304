"""Kernel targets: a file each (``docs/adding-a-target.md``); ``ncuflow.target.contract`` finds them."""

"""Which values of a kernel's knobs are fastest, shape by shape."""

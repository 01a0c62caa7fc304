"""Static evidence: what compiled kernels say of a GPU that they were not run on."""

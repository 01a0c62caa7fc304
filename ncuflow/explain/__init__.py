"""An explanation: what limits one kernel, what its warps wait for, what it could gain, and where each number comes from."""

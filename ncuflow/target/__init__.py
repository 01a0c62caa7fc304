"""What targets are made of: the contract, launches, inputs, references, pages of a KV cache."""

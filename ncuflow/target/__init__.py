"""What targets are made of: the contract, launches and their rules, inputs, references, pages of a KV cache."""

"""A claim: a statement, its scope, the expression that decides it, its verdict."""

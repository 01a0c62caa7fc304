"""Bisection: between which two versions a point became slower or faster."""

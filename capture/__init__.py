"""Capture: run kernel targets under Nsight Compute and Nsight Systems, keep what they measured."""

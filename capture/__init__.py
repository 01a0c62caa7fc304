"""Capture: run kernel targets under Nsight Compute and Nsight Systems and keep what they measured."""

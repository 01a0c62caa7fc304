"""Findings: tables in, joined measurements, ceilings, verdicts out. Knows no tool's file format and writes no prose."""

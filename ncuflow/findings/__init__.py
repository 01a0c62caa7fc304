"""A finding: tables become joined measurements, limiters, stalls, noise, prices."""

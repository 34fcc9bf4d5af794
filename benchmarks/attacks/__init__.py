"""Attacks of hostile guests: one table per kind, and what plays an attack and says how it ended.

`benchmarks.guest_attacks` runs them all, `tests/desktop/test_guest_attacks.py` a few.
"""

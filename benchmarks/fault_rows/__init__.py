"""Rows of the fault matrix: coroutines from a size between 0 (tests) and 1 (full) to a `Row`."""

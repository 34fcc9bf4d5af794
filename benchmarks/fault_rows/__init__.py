"""The rows of the fault matrix. Each is a coroutine that takes a size from 0 (tests) to 1 (the full one) and gives a `Row`."""

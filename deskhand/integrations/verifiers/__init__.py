"""Deskhand's desktops for [verifiers](https://github.com/PrimeIntellect-ai/verifiers). Requires its package."""

"""Recorded episodes for other trainers (`datasets`, TRL, verl, AReaL, verifiers), and trajectories of others."""

"""Peers of comparisons, run in their own environments, and Deskhand's endpoint as a peer."""

"""Applications that a desktop can run: one profile each, in `catalog.PROFILES`."""

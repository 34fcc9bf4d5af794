"""Applications that a desktop can offer: one profile each, in `table.PROFILES`."""

"""OSWorld's way of acting and observing (the recipe), measured on the same screen in the same run."""

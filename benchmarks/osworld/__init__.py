"""OSWorld beside ours: the recipe that ours is compared with: OSWorld's way of acting and looking, on the same screen in the same
run.
"""

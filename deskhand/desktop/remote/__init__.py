"""What clients of desktops on other machines have in common."""

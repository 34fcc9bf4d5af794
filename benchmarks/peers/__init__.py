"""What runs on the other side of a comparison: peers in environments of their own, and Deskhand's own endpoint as a peer."""

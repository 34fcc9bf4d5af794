"""Deskhand's desktops as an environment of TRL's GRPOTrainer. TRL is not imported here."""

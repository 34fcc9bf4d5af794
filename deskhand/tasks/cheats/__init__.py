"""Steps of audit agents that cheat, and what they run in the guest. Used by `tasks.audit_agents`."""

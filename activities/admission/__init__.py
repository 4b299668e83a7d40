"""What a request gets on this machine: the operator's policy, trust in workspaces, JSON Schemas. Starts no agent."""

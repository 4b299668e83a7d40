"""How to talk to each agent: bytes from and to AgentEvents. No agent knows where its process runs."""

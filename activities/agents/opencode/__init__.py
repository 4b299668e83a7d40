"""opencode, through the Agent Client Protocol and a plugin that tells what the protocol leaves out."""

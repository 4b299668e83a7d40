"""Gemini CLI, through the Agent Client Protocol."""

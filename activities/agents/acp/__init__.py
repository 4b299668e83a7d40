"""Agents that speak the Agent Client Protocol (ACP, version 1) on their stdio: any command, and Gemini CLI."""

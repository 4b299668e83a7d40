"""Attacks, each by the means that a request, an agent, a repository or a web page has. Nothing of them may succeed."""

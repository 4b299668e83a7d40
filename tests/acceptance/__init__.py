"""The real worker, server, agents and command lines, as a user has them; looked at from outside."""

"""Pure code, tested without a server and without processes: fast, and in the thousands."""

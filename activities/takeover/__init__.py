"""Which workers of this host live, and giving the activities of a fallen one back to the server."""

"""The API server of the tests, held to what Kubernetes does: by the official client, and by raw websockets."""

"""The Python client, against a real server and a machine played by the test."""

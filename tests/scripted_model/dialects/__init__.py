"""The APIs that the scripted model speaks. Each module is a `Dialect`, and reads and writes the bytes of one API."""

"""The parts of worker.py: settings, logs, the connection to Temporal, wiring, replay. Only worker.py imports them."""

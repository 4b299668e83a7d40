"""`steer loop`: loops from the command line.

Words become requests in planning, text is made in wording; what a loop does is known to the client alone.
"""

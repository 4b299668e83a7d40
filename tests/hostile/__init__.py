"""Attacks from outside and inside, each against the real thing: what they try must not come to be."""

"""Attacks: what requests, repositories, agents and web pages try, against the real programs."""

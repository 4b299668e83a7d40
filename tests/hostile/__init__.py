"""Attacks: requests, repositories, agents and web pages that want more than they were given."""

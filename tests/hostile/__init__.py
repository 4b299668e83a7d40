"""Attacks: requests, repositories, agents and pages that want more than they were given."""

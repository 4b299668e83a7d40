"""Patterns of an operator, in which `*` stands for any characters."""

import re


def fits(pattern: str, value: str) -> bool:
    """Whether all of the value is what the pattern says; upper and lower case differ."""
    return bool(re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), value))

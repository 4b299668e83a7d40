"""Steersman as an agent of the Agent Client Protocol: what `steer acp` serves on stdio, so that an editor starts, joins
and leaves durable runs. Needs the extra `acp`.
"""

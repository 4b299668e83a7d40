"""What the public client (steersman.client, steersman.loops) is built of. Private: users import nothing from here.

Modules here import each other downwards, and of steersman only connection, codec, hosts, reports, errors and contracts:
import-linter's contracts in pyproject.toml have the order. Nothing is decided about a run or loop here: workflows do.
"""

"""What the public client (steersman.client, steersman.loops) is built of. Private: users import nothing from here.

Modules here import each other downwards, and of the rest only errors, reports, connection and contracts. The contracts
of import-linter in pyproject.toml hold the order. No decision about a run or loop is taken here: workflows take them.
"""

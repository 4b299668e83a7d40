"""`steer loop`: loops from the command line.

`request` makes requests out of words, `formatting` makes text. What a loop does is known to the client alone. The rule
of `steersman.cli.commands` on imports holds here for `start`, `status`, `control`, `revise` and `checkpoints`.
"""

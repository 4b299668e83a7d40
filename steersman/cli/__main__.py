"""`python -m steersman.cli`: the same as `steer`."""

from steersman.cli.main import run

run()

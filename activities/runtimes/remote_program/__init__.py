"""Programs that run where agents run, from one file each and sent there as they are: Python 3.9's standard library."""

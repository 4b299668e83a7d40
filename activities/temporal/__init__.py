"""What activities ask and tell the Temporal server: executions, closed runs, signals to a run's workflow.

What a worker does with the answer must not live here.
"""

"""Leading a run: the run's controller, its attempts, what they come to. Knows no Temporal and no policy.

From the top: completion, controller, attempt, its messages and supervision, then plain decisions and data.
"""

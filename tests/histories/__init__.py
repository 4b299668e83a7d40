"""Histories of real runs, and the promise that today's workflows still replay them.

A file is recorded once and kept: a run that is at work during an upgrade has just such a history. When a change of the
workflows breaks one, give the change a `workflow.patched` branch; a file goes only together with the branch for it.
`python -m tests.histories.record [NAME...]` records real runs with the code at hand, under new names where the old
files are to stay.
"""

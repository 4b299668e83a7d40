"""Items of a loop, i.e. what is left to do: read from plans, checkboxes, JSON and programs. Knows no git."""

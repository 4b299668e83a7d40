"""A workspace is carried to a copy of it, here or elsewhere, and what became of it there is carried back."""

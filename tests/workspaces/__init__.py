"""Tests of what keeps, compares and restores the files of a workspace."""

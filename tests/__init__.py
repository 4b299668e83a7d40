"""Tests of Steersman, and the doubles that they share: the scripted model, contracts for import-linter."""

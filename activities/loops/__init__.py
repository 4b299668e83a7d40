"""What a loop sees of a workspace and keeps of it: plans, items, fingerprints, checkpoints. Knows no Temporal."""

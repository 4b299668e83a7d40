"""What a loop sees of a workspace and keeps of it: plans and items. Knows no Temporal."""

"""Everything that touches the world: Temporal activities, one class per capability, with their ports injected."""

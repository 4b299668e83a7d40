"""The `steer` command as a user meets it: real processes, pipes and terminals."""

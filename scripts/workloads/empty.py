"""Nothing: what remains is the launcher's own time."""

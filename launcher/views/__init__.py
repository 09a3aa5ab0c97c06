"""What is shown of a run while it lives: status, metrics, health."""

"""What ranks and the agents of other nodes say, and what silence means, as events."""

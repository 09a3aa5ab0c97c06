"""The agent's side: what is heard of the ranks, and what their silence means. Pure but for the socket and /proc."""

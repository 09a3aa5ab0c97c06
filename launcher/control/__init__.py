"""The control socket and what a request may see of the agent."""

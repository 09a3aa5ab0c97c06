"""The ranks of this node: what each executes, whether it starts cold or from a standby, all of them together."""

"""Side by side with the peers: the same workloads, in turn, on the same machine. Run by ``scripts/bench``."""

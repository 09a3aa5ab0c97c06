"""What outlives every generation on this machine: its health, its GPUs, its shared memory."""

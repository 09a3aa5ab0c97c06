"""What outlives every generation on this machine: is the node fit, are its GPUs back, what is left in /dev/shm."""

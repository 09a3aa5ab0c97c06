"""What is written down of a run: its directory, its events, its incidents, the report of its failure."""

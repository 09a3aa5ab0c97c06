"""What a run was like, derived from its events: generations, goodput, what was lost and why, and how that is shown."""

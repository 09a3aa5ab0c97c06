"""Processes below the agent: started, watched, stopped to the last one, also when the agent itself was killed."""

"""A warm process, its imports done, that becomes a rank when one is needed."""

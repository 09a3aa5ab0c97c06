"""The entries of the decision table, by what they are about."""

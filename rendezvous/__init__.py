"""Agreeing on the members, ranks and master address of the next generation."""

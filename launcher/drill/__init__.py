"""Drills: faults on purpose, in a running job or in one that is started for it, and whether the job took them well."""

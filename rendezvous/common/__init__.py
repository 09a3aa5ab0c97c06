"""What all rendezvous of several nodes share: decisions, tables, records, and seeing whether a peer lives."""

"""Whether this node is fit to carry ranks: small checks with one kind of answer, run together under one deadline."""

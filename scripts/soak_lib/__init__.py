"""A seeded run of chaos over two nodes and an etcd of three members, with a verdict. Run by ``scripts/soak``."""

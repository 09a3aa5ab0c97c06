"""The command line of ``ftlaunch``: from arguments and environment to one frozen configuration."""

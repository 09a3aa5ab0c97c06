"""``ftctl``: looks at and acts on running jobs and finished runs.

Each module here whose name has no leading underscore is a subcommand of that name and holds it as ``command``. It is
imported only when it is used, or when ``ftctl --help`` lists all of them.
"""

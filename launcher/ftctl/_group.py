"""A click group whose subcommands are found by module name and imported when they are used."""

from __future__ import annotations

import importlib
import pkgutil

import click

from ftlaunch.launcher import ftctl


class LazyGroup(click.Group):
    """Knows its subcommands by name only."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(
            module.name.replace("_", "-")
            for module in pkgutil.iter_modules(ftctl.__path__)
            if not module.name.startswith("_")
        )

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        module = importlib.import_module(f"{ftctl.__name__}.{cmd_name.replace('-', '_')}")
        command = module.command
        if not isinstance(command, click.Command):
            raise TypeError(f"{module.__name__}.command is not a click command")
        return command

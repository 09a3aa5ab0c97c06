"""A click group whose subcommands are found by module name and imported when they are used."""

from __future__ import annotations

import importlib
import pkgutil
from difflib import get_close_matches

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

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does; a word that is no command but nearly one is answered with that."""
        near = [] if args[0] in self.list_commands(ctx) else get_close_matches(args[0], self.list_commands(ctx), 1)
        if near and not args[0].startswith("-") and not ctx.resilient_parsing:
            raise click.UsageError(f"no such command {args[0]!r}, did you mean {near[0]}?", ctx)
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        module = importlib.import_module(f"{ftctl.__name__}.{cmd_name.replace('-', '_')}")
        command = module.command
        if not isinstance(command, click.Command):
            raise TypeError(f"{module.__name__}.command is not a click command")
        return command

"""Commands for shells and agents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qsearch.cli.command import command

if TYPE_CHECKING:
    from qsearch.settings.parameters import Shell


@command(own_code=False)
def completion_command(shell: Shell) -> None:
    """Print the script that makes a shell complete commands and flags.

    \b
    bash, zsh  eval "$(qsearch completion bash)"
    fish       qsearch completion fish | source

    Args:
        shell: bash, zsh or fish
    """
    from click.shell_completion import get_completion_class

    from qsearch.cli.main import COMPLETE, qsearch

    kind = get_completion_class(shell)
    assert kind is not None
    print(kind(qsearch, {}, "qsearch", COMPLETE).source())


@command(own_code=False)
def skill_command() -> None:
    """Print SKILL.md: doctor, compile, launch, verify and export for agents, with the fields of
    their JSON, exit codes, and what to do at each error."""
    from importlib.resources import files

    print(files("qsearch").joinpath("SKILL.md").read_text(encoding="utf-8"), end="")

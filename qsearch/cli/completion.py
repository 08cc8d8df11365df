"""``qsearch completion``: what a shell needs to complete commands and flags."""

from __future__ import annotations

import argparse
from importlib import import_module

from qsearch.cli.arguments import Parser

SHELLS = ("bash", "zsh", "fish")


def add_arguments(parser: Parser) -> None:
    """Flags of completion."""
    parser.epilog = (
        'bash, zsh: eval "$(qsearch completion bash)"; fish: qsearch completion fish | source'
    )
    parser.add_argument("shell", choices=SHELLS, help="whose language the script is in")


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    print({"bash": _bash, "zsh": _zsh, "fish": _fish}[args.shell](flags_of_commands()))
    return 0


def flags_of_commands() -> dict[str, list[str]]:
    """The long flags of every command, as the parsers declare them."""
    from qsearch.cli.main import COMMANDS, module_of

    found = {}
    for name in COMMANDS:
        parser = Parser(prog=name)
        import_module(module_of(name)).add_arguments(parser)
        found[name] = sorted(flag for flag in parser.flags() if flag.startswith("--"))
    return found


def _bash(flags: dict[str, list[str]]) -> str:
    cases = "\n".join(f'    {name}) words="{" ".join(these)}" ;;' for name, these in flags.items())
    return f"""_qsearch() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" words
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "{" ".join(flags)}" -- "$word"))
    return
  fi
  case "${{COMP_WORDS[1]}}" in
{cases}
  esac
  case "$word" in
    -*) COMPREPLY=($(compgen -W "$words" -- "$word")) ;;
    *) COMPREPLY=($(compgen -f -- "$word")) ;;
  esac
}}
complete -o filenames -F _qsearch qsearch"""


def _zsh(flags: dict[str, list[str]]) -> str:
    return "autoload -U +X bashcompinit && bashcompinit\n" + _bash(flags)


def _fish(flags: dict[str, list[str]]) -> str:
    lines = [
        f"complete -c qsearch -n __fish_use_subcommand -f -a '{' '.join(flags)}'",
    ]
    for name, these in flags.items():
        for flag in these:
            lines.append(
                f"complete -c qsearch -n '__fish_seen_subcommand_from {name}' -l {flag[2:]}"
            )
    return "\n".join(lines)

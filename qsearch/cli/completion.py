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
    print({"bash": _bash, "zsh": _zsh, "fish": _fish}[args.shell](parsers_of_commands()))
    return 0


def parsers_of_commands() -> dict[str, Parser]:
    """Every command with its flags and their values, as it declares them."""
    from qsearch.cli.main import COMMANDS, module_of

    found = {}
    for name in COMMANDS:
        found[name] = Parser(prog=name)
        import_module(module_of(name)).add_arguments(found[name])
    return found


def _flags(parser: Parser) -> list[str]:
    return sorted(flag for flag in parser.flags() if flag.startswith("--"))


def _split(words: list[str]) -> tuple[str, bool]:
    """The words to offer, and whether a file may stand there too."""
    return " ".join(word for word in words if not word.isupper()), any(map(str.isupper, words))


def _bash(commands: dict[str, Parser]) -> str:
    flags, values = [], []
    for name, parser in commands.items():
        flags.append(f'    {name}) words="{" ".join(_flags(parser))}" ;;')
        for flag, words in parser.values().items():
            legal, files = _split(words)
            offer = f'compgen {"-f " if files else ""}-W "{legal}" -- "$word"'
            place = f'"{name} {flag}"' if flag else f'"{name} {name}"'
            values.append(f"    {place}) COMPREPLY=($({offer})); return ;;")
    cases, offered = "\n".join(flags), "\n".join(values)
    return f"""_qsearch() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" words
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "{" ".join(commands)}" -- "$word"))
    return
  fi
  case "${{COMP_WORDS[1]}}" in
{cases}
  esac
  case "${{COMP_WORDS[1]}} ${{COMP_WORDS[COMP_CWORD-1]}}" in
{offered}
  esac
  case "$word" in
    -*) COMPREPLY=($(compgen -W "$words" -- "$word")) ;;
    *) COMPREPLY=($(compgen -f -- "$word")) ;;
  esac
}}
complete -o filenames -F _qsearch qsearch"""


def _zsh(commands: dict[str, Parser]) -> str:
    return "autoload -U +X bashcompinit && bashcompinit\n" + _bash(commands)


def _fish(commands: dict[str, Parser]) -> str:
    lines = [
        f"complete -c qsearch -n __fish_use_subcommand -f -a '{' '.join(commands)}'",
    ]
    for name, parser in commands.items():
        start = f"complete -c qsearch -n '__fish_seen_subcommand_from {name}'"
        values = parser.values()
        lines += [f"{start} -f -a '{' '.join(values[''])}'"] if "" in values else []
        for flag in _flags(parser):
            legal, files = _split(values.get(flag, []))
            offer = f" {'-r' if files else '-x'} -a '{legal}'" if legal else ""
            lines.append(f"{start} -l {flag[2:]}{offer}")
    return "\n".join(lines)

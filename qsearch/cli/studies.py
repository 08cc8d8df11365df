"""Commands about stored studies: look at them, compare them, stop, delete."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from qsearch.cli.command import Call, command
from qsearch.cli.output import (
    COUNTED,
    print_legend,
    print_rows,
    print_table,
    without_empty,
    wrapped,
)
from qsearch.errors import SettingsError
from qsearch.exit_codes import EXIT_OK, EXIT_TARGET_MISSED

if TYPE_CHECKING:
    from qsearch.server.client import Client
    from qsearch.settings.parameters import (
        Json,
        Out,
        RowsFormat,
        Server,
        Yes,
    )

_HASH_LETTERS: Final = 12
_SELDOM: Final = ("drivers", "pruned", "failed", "infeasible", "from_store")
"""Counts that are shown where there are any."""


def _found(call: Call) -> Call:
    """Return a call with the study that it names; one that was looked for is said on stderr."""
    from qsearch.run.run_folder import find_study

    given = call.given
    folder = given.get("folder")
    storage = given.get("storage")
    found = find_study(folder, storage, given.get("study"))
    if folder is None and storage is None:
        where = "QSEARCH_STORAGE" if found.folder is None else found.folder
        print(f"found in {where}", file=sys.stderr)
    place = {"folder": found.folder, "storage": found.storage, "study": found.name}
    return Call(call.function, {**given, **place})


def _on_server(call: Call) -> str:
    """Return the name of the study on a server.

    Raises:
        SettingsError: none was given.
    """
    name = call.given.get("study") or call.given.get("folder")
    if name is None:
        raise SettingsError(
            "which study?",
            where="--server",
            fix="name it; `qsearch queue --server URL` lists all",
        )
    return str(name)


# Looking ----------------------------------------------------------------------------------------


@command("status", own_code=False)
def status_command(status: Call, server: Server = None, as_json: Json = False) -> None:
    """List the studies of a run folder or storage and their progress, one line each.

    Args:
        as_json: print one JSON array
    """
    if server is not None:
        from qsearch.server.client import Client

        rows = Client(server).studies(status.given.get("study") or status.given.get("folder"))
    else:
        rows = status()
    if as_json:
        print(json.dumps(rows))
    else:
        print_table(without_empty(rows, _SELDOM), "--json has them")


@command("trials", own_code=False)
def trials_command(
    trials: Call,
    server: Server = None,
    params: bool = False,
    format: RowsFormat = "table",
) -> None:
    """List the trials of a study.

    Args:
        params: also print the parameters of each trial
    """
    if server is not None:
        from qsearch.server.client import Client

        given = trials.given
        client = Client(server)
        rows = client.trials(_on_server(trials), given["filter"], given["sort"], given.get("limit"))
    else:
        rows = _found(trials)()
    _print_with_params(rows, format, params, "number")


def _print_with_params(
    rows: Sequence[Mapping[str, Any]], format: str, asked: bool, label: str
) -> None:
    """Print rows; a table has the parameters of each below it, where they were asked for.

    Args:
        label: column that names a row.
    """
    if format != "table":
        print_rows(rows, format)
        return
    print_rows(without_empty([_short(row) for row in rows]), format)
    if not asked:
        return
    every = [row["params"] or {} for row in rows]
    same = {n for n in set().union(*every) if len({repr(params.get(n)) for params in every}) == 1}
    if len(rows) > 1 and same:
        print(wrapped(f"all: {_told({n: every[0][n] for n in every[0] if n in same})}", "  "))
    for row, params in zip(rows, every, strict=True):
        differing = {n: v for n, v in params.items() if len(rows) == 1 or n not in same}
        print(wrapped(f"{row[label]}: {_told(differing)}", "  "))


def _short(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row without its parameters, hashes cut."""
    return {
        name: value[:_HASH_LETTERS] if name.endswith("sha256") and value else value
        for name, value in row.items()
        if name != "params"
    }


def _told(params: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in params.items()) or "nothing of its own"


@command("best")
def best_command(
    best: Call,
    server: Server = None,
    qconfig: bool = False,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Print the winner of a study, or another trial: its scores, parameters and module.

    Args:
        qconfig: print only the configuration, for `compile --qconfig`
        out: also write the module of the trial: t.qmod
    """
    given = best.given
    trial = given.get("trial")
    extreme = next((name for name in ("smallest", "fastest") if given[name]), None)
    if server is not None:
        from qsearch.server.client import Client

        if extreme is not None:
            raise SettingsError(
                f"--{extreme} is of a run folder", where="--server", fix="leave out one of them"
            )
        found = best_on_server(Client(server), _on_server(best), trial, out)
    else:
        best = _found(best)
        found = best()
        if out is not None:
            from qsearch.commands.trial_module import write_trial

            place = {name: best.given[name] for name in ("storage", "study")}
            write_trial(best.given["folder"], found["number"], out, **place)
            found["module"] = out
    if qconfig:
        print(json.dumps(found["qconfig"], indent=1))
    elif as_json:
        print(json.dumps(found))
    else:
        print_best(found, extreme or ("best" if trial is None else "chosen"))


def best_on_server(client: Client, name: str, trial: int | None, out: Out) -> dict[str, Any]:
    """The winner on a server; its module is fetched and verified where ``out`` says so."""
    found = client.best(name, trial)
    if out is not None:
        if trial is not None:
            raise SettingsError(
                "a server has the module of the best trial only",
                where="--trial",
                fix="leave it out, or `qsearch compile` with --qconfig of the trial",
            )
        proof = client.download(name, out)
        found["module"] = f"{out} ({'proved here' if proof.proved else 'not integers only'})"
    return found


def print_best(found: Mapping[str, Any], role: str = "best") -> None:
    """Print a trial as ``studies.best`` gives it."""
    from qsearch.report.build import layers_told
    from qsearch.search.objectives import accuracies_in

    print(f"study      {found['study']}\n{role:<10} trial {found['number']}")
    accuracies = {n: v for n, v in accuracies_in(found).items() if v is not None}
    for name, value in accuracies.items():
        print(f"{name:<10} {value:.4f}{_interval(found['intervals'].get(name))}")
    for name in ("verdict", "luck"):
        if told := found.get(name):
            print(wrapped(f"{name:<10} {told}", " " * 11))
    for one in found.get("front", ()):
        rest = ", ".join(f"{n} {_shown(v)}" for n, v in one.items() if n != "trial")
        print(f"front      trial {one['trial']}: {rest}")
    print(wrapped(f"params     {_told(found['params'])}", " " * 11))
    if layers := layers_told(found["qconfig"]):
        print(wrapped(f"layers     {layers}", " " * 11))
    print(f"module     {found['module'] or 'not written here; -o t.qmod writes it'}")
    print_legend(accuracies)


def _interval(ends: Sequence[float] | None) -> str:
    if ends is None:
        return ""
    return f"  (95 %: {ends[0]:.4f} to {ends[1]:.4f})"


def _shown(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    if abs(value) >= COUNTED:
        return f"{value:,.0f}"
    return f"{value:.4g}"


@command("compare", own_code=False)
def compare_command(
    compare: Call,
    params: bool = False,
    format: RowsFormat = "table",
) -> None:
    """Print studies side by side, one row each.

    Args:
        params: also print the parameters of each best trial
    """
    _print_with_params(compare(), format, params, "study")


@command("write_report", own_code=False)
def report_command(write_report: Call) -> None:
    """Write a study as one HTML page with all plots."""
    print(f"wrote {_found(write_report)()}")


# Changing ---------------------------------------------------------------------------------------


@command("stop", own_code=False)
def stop_command(
    stop: Call, server: Server = None, pause: bool = False, resume: bool = False
) -> None:
    """End, pause or resume a running search, wherever it runs.

    The command is written to the store, which the drivers read every second.

    Args:
        pause: start no more trials until --resume
        resume: continue after --pause
    """
    if pause and resume:
        raise click.UsageError("--pause and --resume exclude each other")
    kind: Final = "pause" if pause else "resume" if resume else "stop"
    if server is not None:
        from qsearch.server.client import Client

        name = _on_server(stop)
        listening = Client(server).command(name, kind)
    else:
        name, listening = _found(stop)(kind=kind)
    print(f"{kind}: study {name}, {listening} driver(s) listening")


@command("try_qconfig", own_code=False)
def try_command(try_qconfig: Call, server: Server = None) -> None:
    """Have a configuration evaluated next, whatever the sampler proposes.

    A study without a driver keeps it for its next one.
    """
    given = try_qconfig.given
    if given.get("qconfig") is None:  # one word: the study is named otherwise
        given["qconfig"] = given.pop("folder", None)
    if given["qconfig"] is None:
        raise click.UsageError("FILE is missing: what shall be tried?")
    if server is not None:
        from qsearch.search.trying import fields_of_text
        from qsearch.server.client import Client

        name = _on_server(try_qconfig)
        listening = Client(server).try_qconfig(name, fields_of_text(given["qconfig"]))
    else:
        name, listening = _found(try_qconfig)()
    print(f"try: study {name}, {listening} driver(s) listening")


@command("delete", own_code=False)
def delete_command(delete: Call, yes: Yes = False) -> int:
    """Delete a study. Asks for confirmation on a terminal; elsewhere --yes is required.

    Args:
        yes: do not ask for confirmation
    """
    named = delete.given.get("study") or delete.given.get("folder")
    if named is None:
        raise SettingsError(
            "delete what?",
            where="qsearch delete",
            fix="name a run folder, or --storage and --study",
        )
    if not yes:
        if not sys.stdin.isatty():
            raise SettingsError("deleting needs a yes", where="qsearch delete", fix="say --yes")
        answer = input(f"delete {named} with all its trials? [y/N] ")
        if answer.strip().lower() != "y":
            return EXIT_TARGET_MISSED
    print(f"deleted: study {delete()}")
    return EXIT_OK

"""Commands about stored studies: look at them, compare them, stop, delete."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import click

from qsearch.cli import options
from qsearch.cli.options import OUTPUT, STUDY, Command, Decorator, argument, grouped, option
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

_HASH_LETTERS: Final = 12
_SELDOM: Final = ("drivers", "pruned", "failed", "infeasible", "from_store")
"""Counts that are shown where there are any."""


@dataclass(frozen=True, slots=True)
class GivenStudy:
    """The study that a command names: a run folder, or a storage and a name."""

    folder: str | None
    storage: str | None
    name: str | None

    def found(self) -> dict[str, Any]:
        """The study, as the functions of ``studies`` take it.

        Where nothing was told, what was found is said on stderr.
        """
        from qsearch.run.run_folder import find_study

        found = find_study(self.folder, self.storage, self.name)
        if self.folder is None and self.storage is None:
            where = "QSEARCH_STORAGE" if found.folder is None else found.folder
            print(f"found in {where}", file=sys.stderr)
        return {"folder": found.folder, "storage": found.storage, "study": found.name}

    def on_server(self) -> str:
        """The name of the study on a server.

        Raises:
            SettingsError: none was given.
        """
        name = self.name or self.folder
        if name is None:
            raise SettingsError(
                "which study?",
                where="--server",
                fix="name it; `qsearch queue --server URL` lists all",
            )
        return name


def _named_study(folder: str) -> Decorator:
    """The study that a command names; ``folder`` is the help of its run folder."""
    return grouped(
        "study",
        lambda folder, storage, study: GivenStudy(folder, storage, study),
        argument("folder", "DIR", folder, required=False),
        option("--storage", metavar="URL", help="storage, instead of a run folder's", panel=STUDY),
        option(
            "--study", metavar="NAME", help="name of the study, if there are several", panel=STUDY
        ),
    )


given_study: Final = _named_study("run folder (the only one in runs)")


# Looking ----------------------------------------------------------------------------------------


@click.command(cls=Command)
@argument("folder", "DIR", "run folder, or folder of run folders (runs)", required=False)
@option("--storage", metavar="URL", help="storage, instead of a run folder's", panel=STUDY)
@option("--study", metavar="NAME", help="only this study", panel=STUDY)
@options.server
@option("--json", "as_json", help="print one JSON array", panel=OUTPUT)
def status_command(
    folder: str | None, storage: str | None, study: str | None, server: str | None, as_json: bool
) -> None:
    """List the studies of a run folder or storage and their progress, one line each."""
    if server is not None:
        from qsearch.server.client import Client

        rows = Client(server).studies(study or folder)
    else:
        from qsearch.commands import studies as stored

        rows = stored.status(folder, storage=storage, study=study)
    if as_json:
        print(json.dumps(rows))
    else:
        print_table(without_empty(rows, _SELDOM), "--json has them")


@click.command(cls=Command)
@given_study
@options.server
@option(
    "--filter",
    metavar="TERMS",
    default="",
    help="terms that must hold: 'state=complete sqnr_db>35 size<=80%'",
)
@option(
    "--sort",
    metavar="COLUMNS",
    default="number",
    help="columns to sort by, -COLUMN for the greatest first",
    panel=OUTPUT,
)
@options.count("--limit", help="at most N rows", panel=OUTPUT)
@option("--params", help="also print the parameters of each trial", panel=OUTPUT)
@options.rows_format
def trials_command(
    study: GivenStudy,
    server: str | None,
    filter: str,
    sort: str,
    limit: int | None,
    params: bool,
    format: str,
) -> None:
    """List the trials of a study."""
    if server is not None:
        from qsearch.server.client import Client

        rows = Client(server).trials(study.on_server(), filter, sort, limit)
    else:
        from qsearch.commands import studies as stored

        rows = stored.trials(**study.found(), filter=filter, sort=sort, limit=limit)
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


@click.command(cls=Command)
@given_study
@options.server
@option("--trial", metavar="N", type=click.IntRange(0), help="this trial instead of the best one")
@option("--smallest", help="of the trials within the limits the one with the fewest bytes")
@option(
    "--fastest", help="of the trials within the limits the fastest, where the search timed them"
)
@option("--qconfig", help="print only the configuration, for `compile --qconfig`", panel=OUTPUT)
@options.output(help="also write the module of the trial: t.qmod")
@options.as_json
@options.imports
def best_command(
    study: GivenStudy,
    server: str | None,
    trial: int | None,
    smallest: bool,
    fastest: bool,
    qconfig: bool,
    out: str | None,
    as_json: bool,
) -> None:
    """Print the winner of a study, or another trial: its scores, parameters and module."""
    extreme = "smallest" if smallest else "fastest" if fastest else None
    if extreme is not None and (server is not None or trial is not None or (smallest and fastest)):
        raise SettingsError(
            f"one trial is meant, and --{extreme} is one of a run folder",
            where=f"--{extreme}",
            fix="leave out --server, --trial and the other of --smallest and --fastest",
        )
    if server is not None:
        from qsearch.server.client import Client

        found = best_on_server(Client(server), study.on_server(), trial, out)
    else:
        from qsearch.commands import studies as stored

        where = study.found()
        found = stored.best(**where, number=trial, extreme=extreme)
        if out is not None:
            from qsearch.commands.trial_module import write_trial

            place = {"storage": where["storage"], "study": where["study"]}
            write_trial(where["folder"], found["number"], out, **place)
            found["module"] = out
    if qconfig:
        print(json.dumps(found["qconfig"], indent=1))
    elif as_json:
        print(json.dumps(found))
    else:
        print_best(found, extreme or ("best" if trial is None else "chosen"))


def best_on_server(client: Client, name: str, trial: int | None, out: str | None) -> dict[str, Any]:
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


@click.command(cls=Command)
@argument("studies", "STUDY", "run folders, or names with --storage", nargs=-1, required=True)
@option("--storage", metavar="URL", help="storage that holds the studies", panel=STUDY)
@option("--params", help="also print the parameters of each best trial", panel=OUTPUT)
@options.rows_format
def compare_command(
    studies: tuple[str, ...], storage: str | None, params: bool, format: str
) -> None:
    """Print studies side by side, one row each."""
    from qsearch.commands import studies as stored

    _print_with_params(stored.compare(studies, storage=storage), format, params, "study")


@click.command(cls=Command)
@given_study
@options.output(default="report.html", help="the page to write (report.html)")
def report_command(study: GivenStudy, out: str) -> None:
    """Write a study as one HTML page with all plots."""
    from qsearch.report.html import report

    print(f"wrote {report(study.folder, out, storage=study.storage, study=study.name)}")


# Changing ---------------------------------------------------------------------------------------


@click.command(cls=Command)
@given_study
@options.server
@option("--pause", help="start no more trials until --resume")
@option("--resume", help="continue after --pause")
def stop_command(study: GivenStudy, server: str | None, pause: bool, resume: bool) -> None:
    """End, pause or resume a running search, wherever it runs.

    The command is written to the store, which the drivers read every second.
    """
    if pause and resume:
        raise options.refused(
            click.get_current_context(), "--pause and --resume exclude each other"
        )
    kind: Final = "pause" if pause else "resume" if resume else "stop"
    if server is not None:
        from qsearch.server.client import Client

        name = study.on_server()
        listening = Client(server).command(name, kind)
    else:
        from qsearch.commands import studies as stored

        name, listening = stored.stop(**study.found(), kind=kind)
    print(f"{kind}: study {name}, {listening} driver(s) listening")


@click.command(cls=Command)
@given_study
@options.server
@argument(
    "qconfig", "FILE", "a qconfig.json, or k=v,… that differ from the first trial", required=False
)
def try_command(study: GivenStudy, server: str | None, qconfig: str | None) -> None:
    """Have a configuration evaluated next, whatever the sampler proposes.

    A study without a driver keeps it for its next one.
    """
    if qconfig is None:  # one word: the study is named otherwise
        qconfig = study.folder
        study = replace(study, folder=None)
    if qconfig is None:
        raise options.refused(click.get_current_context(), "FILE is missing: what shall be tried?")
    if server is not None:
        from qsearch.search.trying import fields_of_text
        from qsearch.server.client import Client

        name = study.on_server()
        listening = Client(server).try_qconfig(name, fields_of_text(qconfig))
    else:
        from qsearch.commands import studies as stored

        found = study.found()
        name, listening = stored.try_qconfig(found.pop("folder"), qconfig, **found)
    print(f"try: study {name}, {listening} driver(s) listening")


@click.command(cls=Command)
@_named_study("run folder; either it or --study is named")
@option("-y", "--yes", help="do not ask for confirmation")
@option("--force", help="also delete while a search seems to run")
def delete_command(study: GivenStudy, yes: bool, force: bool) -> int:
    """Delete a study. Asks for confirmation on a terminal; elsewhere --yes is required."""
    from qsearch.commands import studies as stored

    if study.folder is None and study.name is None:
        raise SettingsError(
            "delete what?",
            where="qsearch delete",
            fix="name a run folder, or --storage and --study",
        )
    if not yes:
        if not sys.stdin.isatty():
            raise SettingsError("deleting needs a yes", where="qsearch delete", fix="say --yes")
        answer = input(f"delete {study.name or study.folder} with all its trials? [y/N] ")
        if answer.strip().lower() != "y":
            return EXIT_TARGET_MISSED
    name = stored.delete(study.folder, storage=study.storage, study=study.name, force=force)
    print(f"deleted: study {name}")
    return EXIT_OK

"""`python -m cli`, called `sluice` in its texts: the commands, their options, and what they print."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from cli import clean as cleaning
from cli import down as downing
from cli.board import Board
from cli.data_folder import FolderInUse
from cli.logs import follow
from cli.settings import PlacementVariables, UpSettings, inherited
from shared.errors import SettingsError
from shared.settings import unknown_names

app = typer.Typer(
    name="sluice",
    help="Sluice: an LLM inference service whose queue loses nothing.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
DataDir = Annotated[
    Path | None, typer.Option(help="Folder of the data, instead of DATA_DIR.", show_default=False)
]


def say(text: str) -> None:
    typer.echo(text)


def fail(text: str) -> typer.Exit:
    typer.echo(f"sluice: {text}", err=True)
    return typer.Exit(1)


def load_settings(**given: object) -> UpSettings:
    """Options that were given stand over the environment."""
    try:
        return UpSettings.load(**{name: v for name, v in given.items() if v is not None})
    except SettingsError as error:
        raise fail(str(error)) from None


@app.command()
def up(
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on.")] = None,
    workers: Annotated[int | None, typer.Option(help="Number of workers.")] = None,
    data_dir: DataDir = None,
) -> None:
    """Start broker, front door and workers here, and stop them at Ctrl-C."""
    from cli.up import START_ERRORS, run_up

    settings = load_settings(host=host, port=port, workers=workers, data_dir=data_dir)
    for line in unknown_names():
        say(f"warning: {line}")
    try:
        with Board(sys.stdout) as board:
            run_up(settings, PlacementVariables.read(), board)
    except START_ERRORS as error:
        raise fail(str(error)) from None


@app.command()
def down(data_dir: DataDir = None) -> None:
    """Drain and stop what `up` started with the same data folder."""
    try:
        downing.stop(load_settings(data_dir=data_dir).data_dir, say)
    except FolderInUse as error:
        raise fail(str(error)) from None


@app.command()
def logs(
    parts: Annotated[
        list[str] | None, typer.Argument(help="Such as api or worker-1; all if none is named.")
    ] = None,
    last: Annotated[int, typer.Option("--last", "-n", help="Lines to begin with.", min=0)] = 20,
    no_follow: Annotated[bool, typer.Option(help="Print and end.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Follow the logs of the parts."""
    folder = load_settings(data_dir=data_dir).data_dir / "logs"
    if not folder.is_dir():
        raise fail(f"no logs in {folder}: has `up` run?")
    try:
        for line in follow(folder, parts or (), last, forever=not no_follow):
            say(line)
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


@app.command()
def pull() -> None:
    """Fetch MODEL_ID, or prepare the demo model, so that later starts need no network."""
    command = [sys.executable, "-m", "worker.model", "--pull"]
    raise typer.Exit(subprocess.run(command, env=inherited()).returncode)


@app.command()
def clean(
    everything: Annotated[
        bool, typer.Option("--all", help="Remove the data and the models in ./model too.")
    ] = False,
    data_dir: DataDir = None,
) -> None:
    """Remove the logs; with --all everything that Sluice has stored here."""
    try:
        data = load_settings(data_dir=data_dir).data_dir
        cleaning.clean(data, Path("model"), everything, say)
    except FolderInUse as error:
        raise fail(str(error)) from None


if __name__ == "__main__":
    app(prog_name="sluice")

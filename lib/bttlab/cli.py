"""The command `bttlab`: what is common to all its subcommands, each of which is a module of `bttlab.commands`.

Results go to stdout, progress and notes to stderr. Exit codes: 0 done; 1 a check failed (doctor, bringup, program); 2
bad input, or a run that had to stop: one line on stderr; 130 or 143 stopped by Ctrl-C or SIGTERM.
"""

import contextlib
import os
import re
import sys
from collections.abc import Sequence
from importlib import import_module

import bttlab
from bttlab.commands import COMMANDS, Parser
from bttlab.util.errors import BttlabError
from bttlab.util.plugins import missing_package, plugins
from bttlab.util.quantities import to_json
from bttlab.util.terminal import result, say

BAD_INPUT = 2
INTERRUPTED = 130


def build_parser() -> Parser:
    """Return the parser of the whole command line; no command is imported further than its arguments."""
    parser = Parser(
        prog="bttlab",
        description=bttlab.__doc__,
        epilog="Exit codes: 0 done; 1 a check failed; 2 bad input, or a run that had to stop; 130 Ctrl-C; 143 SIGTERM.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"bttlab {bttlab.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    modules = {name: import_module(f"bttlab.commands.{name}") for name in COMMANDS}
    modules |= {name: point.load() for name, point in sorted(plugins("commands").items())}
    for name, module in modules.items():
        summary = COMMANDS.get(name) or module.SUMMARY
        command = commands.add_parser(name, help=summary, description=module.__doc__, allow_abbrev=False)
        module.add_arguments(command)
        command.add_argument("--json", action="store_true", help="print the result as one JSON object")
        command.set_defaults(run=module.run)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line, given without the program's name, by default the process's; return the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    as_json = "--json" in arguments
    try:
        _check_values(arguments)
        options = build_parser().parse_args(arguments)
        options.command_line = list(arguments)
        with contextlib.redirect_stdout(sys.stderr):  # whatever a library prints, it is not the result
            outcome = options.run(options)
        result(to_json(outcome.data, indent=2) if options.json else outcome.text)
        return outcome.exit_code
    except BttlabError as error:
        return _fail(str(error), as_json)
    except ModuleNotFoundError as error:
        message = missing_package(error, "this command")
        if message is None:
            raise
        return _fail(message, as_json)
    except BrokenPipeError:  # the reader of our output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BAD_INPUT
    except OSError as error:
        return _fail(f"{error.filename or 'the system'}: {error.strerror or error}", as_json)
    except MemoryError:
        return _fail("the memory of this machine is too small for it; take a smaller model or fewer samples", as_json)
    except KeyboardInterrupt:
        say("bttlab: stopped by Ctrl-C")
        return INTERRUPTED


def _check_values(arguments: Sequence[str]) -> None:
    """Refuse an option with an empty value, such as a shell variable that is not set: it is no default."""
    for option, value in zip(arguments, [*arguments[1:], None], strict=False):
        if option.startswith("--") and (value == "" or re.fullmatch(r"--[\w-]+=", option)):
            raise BttlabError(f"{option.rstrip('=')} has an empty value: give one, or leave the option out")


def _fail(message: str, as_json: bool) -> int:
    message = " ".join(message.split("\n"))
    say(f"bttlab: error: {message}")
    if as_json:
        result(to_json({"error": message, "exit_code": BAD_INPUT}, indent=2))
    return BAD_INPUT

"""Entry point of ``canary-check``: the command group, and how every error ends.

Nothing here or in the command modules imports torch or numba until a command needs them, so ``--help`` is instant.
"""

from __future__ import annotations

import os
import sys
import traceback

import click
from canary_cli import exit_codes
from canary_cli.check import check
from canary_cli.convert import convert
from canary_cli.diff import diff
from canary_cli.explain import explain
from canary_cli.info import info
from canary_cli.inject import inject
from canary_cli.log import log
from canary_cli.redact import redact
from canary_cli.selftest import selftest
from canary_cli.show import show
from click_default_group import DefaultGroup

import canary_numba
from canary_numba.errors import CanaryError

CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"]}


@click.group(cls=DefaultGroup, default="check", default_if_no_args=False, context_settings=CONTEXT_SETTINGS)
@click.version_option(canary_numba.__version__, prog_name="canary-check")
def cli() -> None:
    """Find out what is wrong with a KV cache.

    `canary-check DUMP...` checks saved dumps; it is short for `canary-check check DUMP...`.

    Exit code: 0 clean, 1 corrupt, 2 usage or unreadable input, 3 internal error, 130 interrupted.
    """


cli.add_command(check)
cli.add_command(convert)
cli.add_command(diff)
cli.add_command(explain)
cli.add_command(info)
cli.add_command(inject)
cli.add_command(log)
cli.add_command(redact)
cli.add_command(selftest)
cli.add_command(show)


def _complain(message: str) -> None:
    click.echo(f"canary-check: error: {message}", err=True)


def run(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code; no exception but SystemExit's kin gets past here."""
    try:
        result = cli.main(args=arguments, prog_name="canary-check", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return exit_codes.USAGE
    except click.ClickException as error:
        error.show()
        return exit_codes.USAGE
    except (click.Abort, KeyboardInterrupt):
        _complain("interrupted")
        return exit_codes.INTERRUPTED
    except (CanaryError, OSError) as error:
        _complain(str(error))
        return exit_codes.USAGE
    except Exception as error:
        if os.environ.get("CANARY_DEBUG"):
            traceback.print_exc()
        _complain(f"internal error, please report it: {type(error).__name__}: {error} (CANARY_DEBUG=1 shows where)")
        return exit_codes.INTERNAL
    return int(result) if isinstance(result, int) else exit_codes.CLEAN


def main() -> None:
    """Console script."""
    sys.exit(run())


if __name__ == "__main__":
    main()

"""``canary-check redact``: a dump without its content, to hand on."""

from __future__ import annotations

import click
from canary_cli import exit_codes


@click.command()
@click.argument("dump", type=click.Path())
@click.option("-o", "--output", type=click.Path(dir_okay=False), required=True, help="The redacted dump.")
@click.option(
    "--key-file",
    type=click.Path(dir_okay=False),
    help="Its bytes are the key: dumps redacted under one key can be compared. Without it the key is random and is "
    "forgotten.",
)
@click.option("--hide-names", is_flag=True, help="Replace request ids and the sources of events as well.")
@click.option("--keep-kv", is_flag=True, help="Leave K/V bytes as they are; with the model they tell the tokens.")
@click.option("--keep-context", is_flag=True, help="Keep all facts, such as host, model and time.")
@click.option("--force", is_flag=True, help="Replace the output file if it exists.")
def redact(
    dump: str,
    output: str,
    key_file: str | None,
    hide_names: bool,
    keep_kv: bool,
    keep_context: bool,
    force: bool,
) -> int:
    """Hide what was said in a dump, so that it can leave the company.

    Token ids become keyed hashes, every chain is built anew on them, and K/V bytes give way to eight keyed bytes a slot
    and layer. Slots, pages, positions, lengths, request ids and times of events stay, and so does which tokens are
    equal: the result checks and diagnoses as DUMP does.

    Exit code: 0 written, 2 DUMP or the key is unreadable, or OUT cannot be written.
    """
    import secrets

    from canary_cli.output import refuse_existing

    from canary_numba.dump import load_dump, save_dump
    from canary_numba.redact import redact_dump

    refuse_existing(output, force=force)
    key = secrets.token_bytes(32) if key_file is None else _read_key(key_file)
    hidden = redact_dump(load_dump(dump), key, keep_kv=keep_kv, keep_context=keep_context, hide_names=hide_names)
    save_dump(hidden, output, force=force)
    click.echo(f"canary-check: {output} written", err=True)
    return exit_codes.CLEAN


def _read_key(path: str) -> bytes:
    from canary_numba.errors import ArgumentError

    least = 16
    with open(path, "rb") as file:
        key = file.read()
    if len(key) < least:
        raise ArgumentError(f"--key-file {path}: expected at least {least} bytes, got {len(key)}")
    return key

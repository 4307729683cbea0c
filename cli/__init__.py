"""The command line ``canary-check``: one module a command, one renderer a format under ``render``."""

"""Renderers: a report in, text out. One module a format."""

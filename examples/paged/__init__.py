"""A small paged engine.

`model.py` computes, `memory.py` hands out pages, `engine.py` schedules, `bugs.py` goes wrong.
"""

"""The engine: brings workflows up to date, a level at a time, under the lock of their trees.

It pulls: what follows from the ends of tasks is read off the rows, so it can be asked at any time, and asked again. No
code of a user runs in here.
"""

"""The engine advances workflows level by level, under the locks of their trees.

It reads from the rows what has ended and what follows, so it can run at any time and more than once. It runs no user
code.
"""

"""Graphs as pictures that are made on the server: what to draw, where it stands, and the SVG of it.

Layout and folding are functions of numbers and rows: no database, no request, and the same picture each time.
"""

"""Sphinx."""

project = "horsies-django"
author = "The horsies-django team"
extensions = ["myst_parser"]
myst_heading_anchors = 3
html_theme = "furo"
exclude_patterns = ["_build"]

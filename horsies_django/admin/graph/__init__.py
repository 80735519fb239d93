"""Draw graphs of workflow nodes as SVG on the server: boxes, layout, drawing.

Layout and folding are pure functions: no database, no request, and the same result every time.
"""

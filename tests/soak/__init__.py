"""A long run at mixed load, which reports how memory, connections and tables grow."""

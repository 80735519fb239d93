"""Lists of millions of rows: walked a stretch at a time, narrowed and searched without an index for each wish."""

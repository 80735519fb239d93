"""One module for each peer, each run inside that peer's own virtual environment and nowhere else.

All have the same functions::

    setup()                           create the tables, in an empty database
    send(number)                      enqueue one no-op, as a web request would
    send_many(first, count, body)     enqueue ``count`` bodies, "noop" or "sleep", the fastest way that it documents
    left()                            how many are not yet finished in its own store; 0 is what ends a drain
    workers(processes, slots)         the command line of each worker process, and how many bodies run at once in all;
                                      ``slots`` is None where the peer's own recommendation holds

Two of them have, for the measures that look into deep tables::

    clear()                           forget every task
    lie(kind, count, number)          put so many rows about that are "pending", "finished" or "scheduled"

Those that have workflows, for the measure of these::

    start(shape, count)               start a "chain" of so many no-ops, or a "fan" of so many and one that waits for
                                      them; all are numbered from 0, and that one is the last
    running()                         how many workflows have not ended in its own store
"""

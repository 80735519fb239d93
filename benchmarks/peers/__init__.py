"""One module for each peer, imported only inside that peer's virtual environment. Peers on Node are in ``node/``.

Each module has these functions::

    setup()                           create the tables in an empty database
    send(number)                      enqueue one no-op, as a web request would
    send_many(first, count, body)     enqueue ``count`` bodies, "noop" or "sleep", in the fastest documented way;
                                      peers with steps also have "steps"
    count_unfinished()                return how many tasks its own store does not have as finished
    worker_commands(processes, slots) return the command line of each worker process, and the total number of slots;
                                      with ``slots`` None, use the peer's recommendation

Peers that count in Python how many tasks they have sent also have::

    add_sent(count)                   count tasks that another process sent

Peers that are measured in depth also have::

    clear_tasks()                     delete all tasks
    preload(kind, count, number)      add ``count`` rows that are "pending", "finished", "scheduled",
                                      "retrying" or "unserved"

Peers in a Django project also have::

    count_saves()                     return how many bodies "save" and "asave" have saved a row

Peers with workflows also have::

    start_workflow(shape, count)      start a "chain" of ``count`` no-ops, or a "fan" of ``count`` and a final one that
                                      waits for all; tasks are numbered from 0, and the final one has the highest number
    count_running_workflows()         return how many workflows its own store does not have as ended
"""

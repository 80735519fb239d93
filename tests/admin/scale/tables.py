"""What the tables of the large database hold.

By ``n``, the number of a task, it is known what became of it: see ``_STATUS``. That of its workflow, ``w``, is a
fiftieth of that of its tasks.
"""

from __future__ import annotations

from functools import partial

from horsies_django.models import (
    Heartbeat,
    Queue,
    Rollup,
    Task,
    TaskAttempt,
    Turn,
    Worker,
    Workflow,
    WorkflowEvent,
    WorkflowTask,
)

from .filling import fill

TASKS = 1_000_000

#: The tasks that are worse than the others: with 50 attempts; with a megabyte of arguments and another of result.
TRIED_FIFTY_TIMES, HUGE = 999_957, 999_907

#: Those that nothing but a walk through everything would find: the only one of its name, queue, priority, code.
ONLY_ONE = 7

#: Workflows by the number of the first task: of 10,000 nodes, 1,000 items of a map, a graph of 500, 60 running.
LARGE, MAP, GRAPH = 1, 2, 3

_STATUS = """
CASE
    WHEN n % 50 IN (7, 23, 41) THEN 'FAILED'
    WHEN n % 200 = 3 THEN 'CANCELLED'
    WHEN n % 1000 IN (11, 511, 911) THEN 'EXPIRED'
    WHEN n % 100 = 1 THEN 'SCHEDULED'
    WHEN n % 50 = 9 AND n > 900000 THEN 'RETRYING'
    WHEN n % 50 = 13 AND n > 990000 THEN 'RUNNING'
    WHEN n % 250 = 17 AND n > 990000 THEN 'CLAIMED'
    WHEN n % 100 = 0 AND n <= 50000 THEN 'FORGOTTEN'
    WHEN n % 2 = 0 AND n > 961000 THEN 'DUE'
    WHEN n % 50 IN (33, 37) AND n > 990000 THEN 'DUE'
    ELSE 'COMPLETED'
END
"""

_QUEUES = "(ARRAY['default', 'emails', 'reports', 'imports', 'media', 'billing', 'webhooks', 'search'])"
_APPS = "(ARRAY['orders', 'accounts', 'mailing', 'search', 'stock', 'billing', 'media', 'reports', 'crm', 'api'])"


def queues_and_workers(database: str) -> None:
    """Nine queues, of which nobody serves one; 40 workers that live, 10 that don't."""
    fill(
        database,
        Queue,
        f"unnest({_QUEUES} || 'forgotten'::text) WITH ORDINALITY AS q (name, n)",
        name="name",
        paused="name = 'media'",
        max_concurrency="CASE WHEN n % 3 = 0 THEN 20 END",
    )
    fill(
        database,
        Worker,
        "generate_series(1, 50) AS n",
        id="pg_temp.worker(n)",
        name="'web-' || n",
        hostname="'node' || n % 12 || '.example.org'",
        pid="1000 + n",
        version="'0.1'",
        threads="8",
        async_slots="64",
        queues=f"CASE WHEN n % 4 = 0 THEN '[]' ELSE to_jsonb({_QUEUES}[1 + n % 4 : 4 + n % 4]) END",
        memory="100000000 + n * 1000000",
        started_at="now() - n * interval '3 hours'",
        last_beat_at="CASE WHEN n > 40 THEN now() - interval '2 days' ELSE now() END",
    )
    fill(database, Turn, "unnest(ARRAY['reaper', 'scheduler']) AS name", name="name", holder="pg_temp.worker(1)")


def workflows(database: str) -> None:
    """20,000, those of the last day still running; 200 below others; three large ones."""
    status = """CASE WHEN w > 19220 AND w % 40 = 0 OR w < 500 AND w % 10 = 0 THEN 'PAUSED'
        WHEN w > 19220 THEN 'RUNNING' WHEN w % 33 = 0 THEN 'FAILED' WHEN w % 97 = 1 THEN 'CANCELLED'
        WHEN w % 499 = 2 THEN 'EXPIRED' ELSE 'COMPLETED' END"""
    source = f"""(SELECT w, {status} AS status, pg_temp.sent(50 * w - 31) AS sent_at FROM generate_series(1, 20000) AS w
        ) AS plan"""
    times = {"sent_at": "sent_at", "started_at": "sent_at + interval '1 second'"}
    ended = "status NOT IN ('RUNNING', 'PAUSED')"
    fill(
        database,
        Workflow,
        source,
        id="pg_temp.key(50 * w - 31, 'w')",
        root_id="pg_temp.key(50 * w - 31, 'w')",
        name="'shop.flows.flow_' || w % 30",
        status="status",
        node_count="6",
        open_count="CASE status WHEN 'RUNNING' THEN 6 WHEN 'PAUSED' THEN 6 - (w < 500)::int ELSE 0 END",
        **times,
        paused_at="CASE status WHEN 'PAUSED' THEN sent_at + interval '5 seconds' END",
        failed_index="CASE status WHEN 'FAILED' THEN 3 END",
        completed_at="CASE status WHEN 'COMPLETED' THEN sent_at + interval '90 seconds' END",
        cancelled_at="CASE status WHEN 'CANCELLED' THEN sent_at + interval '60 seconds' END",
        kept_until=f"CASE WHEN {ended} THEN sent_at + interval '40 days' END",
        result="""CASE status WHEN 'COMPLETED' THEN '{"ok": 6}'::jsonb END""",
        error="""CASE status WHEN 'FAILED' THEN '{"error_code": "SHOP_ERROR_3", "message": "refused"}'::jsonb END""",
    )
    large = f"(VALUES ({LARGE}, 10000, 'RUNNING', 4000), ({MAP}, 1001, 'COMPLETED', 0), ({GRAPH}, 500, 'RUNNING', 200))"
    fill(
        database,
        Workflow,
        f"{large} AS large (n, nodes, status, open)",
        id="pg_temp.key(n, 'large')",
        root_id="pg_temp.key(n, 'large')",
        name="'shop.flows.large_' || n",
        status="status",
        node_count="nodes",
        open_count="open",
        sent_at="pg_temp.sent(n)",
        started_at="pg_temp.sent(n)",
        completed_at="CASE status WHEN 'COMPLETED' THEN now() END",
    )
    _nodes(database)
    fill(
        database,
        Workflow,
        "horsies_workflow_tasks AS node WHERE kind = 'subworkflow'",
        id="pg_temp.key(node.id, 'below')",
        root_id="workflow_id",
        parent_id="node.id",
        depth="1",
        name="'shop.flows.below'",
        status="'COMPLETED'",
        started_at="now()",
        completed_at="now()",
    )
    fill(
        database,
        WorkflowEvent,
        "generate_series(1, 5000) AS n",
        workflow_id="pg_temp.key(50 * (3 * n) - 31, 'w')",
        name="'approved'",
        payload="""'"Ada"'::jsonb""",
    )


def _nodes(database: str) -> None:
    """Six in two diamonds; the large ones in layers of a hundred and of ten, each after two of the layer before."""
    waits = """(ARRAY['[]', '[0]', '[0]', '[1, 2]', '[3]', '[3, 4]'])[1 + i]::jsonb"""
    leads = """(ARRAY['[1, 2]', '[3]', '[3]', '[4, 5]', '[5]', '[]'])[1 + i]::jsonb"""
    status = """CASE WHEN flow.status IN ('RUNNING', 'PAUSED') THEN
            CASE WHEN i > 0 THEN 'PENDING' WHEN w < 500 THEN 'COMPLETED' ELSE 'ENQUEUED' END
        WHEN i < 3 OR flow.status = 'COMPLETED' THEN 'COMPLETED' WHEN flow.status = 'FAILED' AND i = 3 THEN 'FAILED'
        ELSE 'SKIPPED' END"""
    source = f"""(SELECT flow.id AS flow_id, flow.sent_at, w, i, {status} AS status,
            w % 100 = 50 AND i = 4 AND flow.status = 'COMPLETED' AS is_below
        FROM generate_series(1, 20000) AS w JOIN horsies_workflows AS flow ON flow.id = pg_temp.key(50 * w - 31, 'w'),
            generate_series(0, 5) AS i OFFSET 0) AS plan"""
    begun = "status IN ('COMPLETED', 'FAILED')"
    fill(
        database,
        WorkflowTask,
        source,
        workflow_id="flow_id",
        task_index="i",
        node_id="'step_' || i",
        status="status",
        kind="CASE WHEN is_below THEN 'subworkflow' ELSE 'task' END",
        waits_for=waits,
        dependents=leads,
        task_id="""CASE WHEN is_below THEN NULL WHEN status = 'FAILED' THEN pg_temp.key(50 * w - 27, 't')
            WHEN status IN ('COMPLETED', 'ENQUEUED') THEN pg_temp.key(50 * w - 30 + 2 * i, 't') END""",
        task_name="'shop.' || 'orders.tasks.step_' || i",
        queue_name=f"{_QUEUES}[1 + i]",
        open_deps="CASE WHEN status = 'PENDING' THEN jsonb_array_length(%s) ELSE 0 END" % waits,
        started_at=f"CASE WHEN {begun} THEN sent_at + (1 + 10 * i) * interval '1 second' END",
        completed_at=f"CASE WHEN {begun} THEN sent_at + (9 + 10 * i) * interval '1 second' END",
        result="""CASE status WHEN 'COMPLETED' THEN '{"ok": 1}'::jsonb END""",
        error_code="CASE status WHEN 'FAILED' THEN 'SHOP_ERROR_3' END",
    )
    large = partial(_layers, database)
    large(LARGE, nodes=10_000, width=100, done=6_000, residue=33)
    large(GRAPH, nodes=500, width=10, done=300, residue=37)
    fill(
        database,
        WorkflowTask,
        "generate_series(0, 1000) AS i",
        workflow_id=f"pg_temp.key({MAP}, 'large')",
        task_index="i",
        node_id="CASE i WHEN 0 THEN 'pages' ELSE 'pages[' || i - 1 || ']' END",
        status="'COMPLETED'",
        kind="CASE i WHEN 0 THEN 'map' ELSE 'task' END",
        map_index="CASE WHEN i > 0 THEN 0 END",
        param="'url'",
        task_id="CASE WHEN i > 0 THEN pg_temp.key(50 * i + 35, 't') END",
        task_name="'shop.orders.tasks.fetch'",
        started_at="pg_temp.sent(50 * i)",
        completed_at="pg_temp.sent(50 * i) + interval '3 seconds'",
        result="""'{"ok": 1}'""",
    )


def _layers(database: str, number: int, *, nodes: int, width: int, done: int, residue: int) -> None:
    first = "i / %d * %d" % (width, width)
    last = f"(i >= {nodes - width})"
    at = f"pg_temp.sent(50 * i + {residue})"
    status = f"CASE WHEN i < {done} THEN 'COMPLETED' WHEN i < {done + 100} THEN 'ENQUEUED' ELSE 'PENDING' END"
    fill(
        database,
        WorkflowTask,
        f"generate_series(0, {nodes - 1}) AS i",
        workflow_id=f"pg_temp.key({number}, 'large')",
        task_index="i",
        node_id="'part_' || i",
        status=status,
        waits_for=f"""CASE WHEN i < {width} THEN '[]' ELSE jsonb_build_array(i - {width},
            {first} - {width} + (i + 1) % {width}) END""",
        dependents=f"""CASE WHEN {last} THEN '[]' ELSE jsonb_build_array(i + {width},
            {first} + {width} + (i + {width} - 1) % {width}) END""",
        task_id=f"""CASE WHEN i < {done} THEN pg_temp.key(50 * i + {residue}, 't')
            WHEN i < {done + 100} THEN pg_temp.key(50 * (i - {done}) + 990000 + {residue}, 't') END""",
        task_name=f"'shop.orders.tasks.part_' || i % {width}",
        open_deps=f"CASE WHEN i < {done + 100} THEN 0 ELSE 2 END",
        started_at=f"CASE WHEN i < {done} THEN {at} END",
        completed_at=f"CASE WHEN i < {done} THEN {at} + interval '2 seconds' END",
        result=f"""CASE WHEN i < {done} THEN '{{"ok": 1}}'::jsonb END""",
    )


def tasks(database: str) -> None:
    """A million, mostly completed."""
    plan = f"""(SELECT plan.*, {_QUEUES}[1 + name_number % 8] AS queue,
            {_APPS}[1 + name_number / 20] AS app, least(sent_at + wait, now()) AS begun, least(sent_at + wait + run, now()) AS ended,
            flow.root_id
        FROM (SELECT n, pg_temp.key(n, 't') AS id, pg_temp.sent(n) AS sent_at, {_STATUS} AS what,
                floor(200 * power(random(), 2.5))::int AS name_number,
                CASE WHEN n % 100 = 19 THEN interval '10 minutes' ELSE pg_temp.seconds(0.05, 1.5) END AS wait,
                pg_temp.seconds(0.4, 1.2) AS run
            FROM generate_series(1, {TASKS}) AS n) AS plan
        LEFT JOIN (SELECT task_id, root_id FROM horsies_workflow_tasks AS node
            JOIN horsies_workflows AS flow ON flow.id = workflow_id WHERE task_id IS NOT NULL) AS flow
        ON task_id = plan.id) AS plan"""
    ran = "what IN ('COMPLETED', 'FAILED', 'RUNNING')"
    later = """CASE what WHEN 'SCHEDULED' THEN now() + random() * interval '20 days'
        WHEN 'RETRYING' THEN now() + (random() - 0.05) * interval '6 hours' ELSE sent_at END"""
    error = """jsonb_build_object('err', jsonb_build_object('error_code', pg_temp.code(n), 'message',
        'the server said ' || n, 'data', NULL, 'exception', jsonb_build_object('type', 'shop.errors.Refused',
        'traceback', pg_temp.stack(n))))"""
    fill(
        database,
        Task,
        plan,
        id="id",
        sent_at="sent_at",
        enqueued_at=later,
        workflow_id="root_id",
        task_name=_only("'migrate_everything'", "'shop.' || app || '.tasks.task_' || lpad(name_number::text, 3, '0')"),
        queue_name=_only("'only'", "CASE what WHEN 'FORGOTTEN' THEN 'forgotten' ELSE queue END"),
        priority=_only("-100", "CASE WHEN n % 20 = 5 THEN 10 WHEN n % 20 = 6 THEN -10 ELSE 0 END"),
        args="jsonb_build_array(n, 'order-' || n)",
        kwargs=f"""CASE n WHEN {HUGE} THEN jsonb_build_object('page', repeat('word ', 200000))
            ELSE jsonb_build_object('user_id', n % 50000, 'email', 'user' || n % 50000 || '@example.org') END""",
        is_async="name_number % 8 = 6",
        status="CASE WHEN what IN ('SCHEDULED', 'RETRYING', 'FORGOTTEN', 'DUE') THEN 'PENDING' ELSE what END",
        deferred="what IN ('SCHEDULED', 'RETRYING')",
        claim=f"CASE WHEN {ran} OR what IN ('CLAIMED', 'RETRYING') THEN 1 ELSE 0 END",
        claimed_by_worker_id=f"""CASE WHEN what IN ('RUNNING', 'CLAIMED') THEN pg_temp.worker(n / 50 % 40 + 1)
            WHEN {ran} THEN pg_temp.worker(n / 5000 + 1) END""",
        claimed_at=f"CASE WHEN {ran} OR what = 'CLAIMED' THEN begun END",
        started_at=f"CASE WHEN {ran} THEN begun END",
        completed_at="CASE what WHEN 'COMPLETED' THEN ended END",
        failed_at="CASE what WHEN 'FAILED' THEN ended END",
        cancelled_at="CASE what WHEN 'CANCELLED' THEN begun END",
        expired_at="CASE what WHEN 'EXPIRED' THEN begun END",
        next_retry_at=f"CASE what WHEN 'RETRYING' THEN {later} END",
        good_until="CASE WHEN n % 500 = 250 THEN sent_at + interval '3 days' WHEN what = 'EXPIRED' THEN sent_at END",
        attempt=f"""CASE WHEN n = {TRIED_FIFTY_TIMES} THEN 50 WHEN what = 'FAILED' THEN 3 WHEN what = 'RETRYING' THEN 2
            WHEN {ran} THEN 1 + (n % 45 = 5)::int ELSE 0 END""",
        retry_count=f"""CASE WHEN n = {TRIED_FIFTY_TIMES} THEN 49 WHEN what IN ('FAILED', 'RETRYING') THEN 2
            ELSE 0 END""",
        max_retries=f"CASE WHEN n = {TRIED_FIFTY_TIMES} THEN 49 ELSE 2 END",
        kept_until="""CASE WHEN what IN ('COMPLETED', 'FAILED', 'CANCELLED', 'EXPIRED')
            THEN sent_at + interval '40 days' END""",
        unique_key="CASE WHEN what = 'SCHEDULED' AND n % 300 = 1 THEN 'order-' || n END",
        progress="""CASE what WHEN 'RUNNING' THEN jsonb_build_object('done', n % 100, 'total', 100, 'message', 'rows')
            END""",
        result=f"""CASE WHEN n = {HUGE} THEN jsonb_set({error}, '{{err,data}}', to_jsonb(repeat('word ', 200000)))
            WHEN what = 'FAILED' THEN {error} WHEN what = 'COMPLETED' THEN jsonb_build_object('ok', jsonb_build_object(
            'rows', n % 1000, 'sum', md5(n::text))) WHEN what IN ('CANCELLED', 'EXPIRED') THEN jsonb_build_object('err',
            jsonb_build_object('error_code', 'TASK_' || what, 'message', 'gone', 'data', NULL)) END""",
        error_code=_only(
            "'ONLY_ONE'",
            """CASE WHEN what = 'FAILED' THEN pg_temp.code(n)
            WHEN what IN ('CANCELLED', 'EXPIRED') THEN 'TASK_' || what END""",
        ),
    )


def _only(value: str, otherwise: str) -> str:
    return f"CASE n WHEN {ONLY_ONE} THEN {value} ELSE {otherwise} END"


def attempts(database: str) -> None:
    """1,100,000, each but the last of its task with an error."""
    source = """(SELECT task.*, try, try < attempt OR status <> 'COMPLETED' AS is_bad, hashtext(id::text) & 65535 AS dice
        FROM horsies_tasks AS task, generate_series(1, attempt - (status = 'RUNNING')::int) AS try) AS plan"""
    at = "coalesce(started_at, sent_at) - (attempt - try) * interval '20 seconds'"
    fill(
        database,
        TaskAttempt,
        source,
        task_id="id",
        attempt="try",
        will_retry="is_bad AND status <> 'FAILED'",
        outcome="""CASE WHEN NOT is_bad THEN 'COMPLETED' WHEN dice % 9 = 0 THEN 'WORKER_FAILURE' ELSE 'FAILED' END""",
        started_at=at,
        finished_at=f"least({at} + coalesce(completed_at - started_at, failed_at - started_at, '1 second'), now())",
        error_code="CASE WHEN is_bad THEN coalesce(error_code, pg_temp.code(dice)) ELSE '' END",
        error_message="CASE WHEN is_bad THEN 'the server said ' || dice ELSE '' END",
        exception_class="CASE WHEN is_bad THEN 'shop.errors.Refused' ELSE '' END",
        traceback="CASE WHEN is_bad THEN pg_temp.stack(dice) ELSE '' END",
        worker_id="coalesce(claimed_by_worker_id, 'web-1')",
        hostname="'node1.example.org'",
        pid="4242",
    )


def heartbeats(database: str) -> None:
    """One each half minute of the held tasks, for hours; those of the last day's tasks are not yet swept."""
    held = "horsies_tasks AS task, generate_series(0, 299) AS n WHERE status IN ('RUNNING', 'CLAIMED')"
    beat = {
        "task_id": "task.id",
        "hostname": "'node1.example.org'",
        "pid": "4242",
        "role": "CASE status WHEN 'CLAIMED' THEN 'claimer' ELSE 'runner' END",
        "sender_id": "coalesce(claimed_by_worker_id, 'web-1')",
    }
    fill(database, Heartbeat, held, sent_at="now() - n * interval '30 seconds'", **beat)
    ended = """horsies_tasks AS task, generate_series(0, 2) AS n
        WHERE task.id > pg_temp.key(966667, '') AND started_at IS NOT NULL AND status <> 'RUNNING'"""
    fill(database, Heartbeat, ended, sent_at="started_at + n * interval '30 seconds'", **beat)


def rollups(database: str) -> None:
    """Each of 200 tasks in each hour of the month, and in each minute of the last three hours, and their failures."""
    source = """(SELECT span, start, name, bad, {apps}[1 + name / 20] AS app, {queues}[1 + name % 8] AS queue
        FROM (SELECT 'H' AS span, date_trunc('hour', now()) - n * interval '1 hour' AS start
                FROM generate_series(0, 719) AS n
            UNION ALL SELECT 'M', date_trunc('minute', now()) - n * interval '1 minute'
                FROM generate_series(0, 179) AS n) AS spans, generate_series(0, 199) AS name,
            generate_series(0, 1) AS bad WHERE bad = 0 OR name % 5 = 0) AS plan"""
    fill(
        database,
        Rollup,
        source.format(apps=_APPS, queues=_QUEUES),
        span="span",
        start="start",
        queue_name="queue",
        task_name="'shop.' || app || '.tasks.task_' || lpad(name::text, 3, '0')",
        outcome="CASE bad WHEN 0 THEN 'COMPLETED' ELSE 'FAILED' END",
        will_retry="false",
        error_code="CASE bad WHEN 0 THEN '' ELSE pg_temp.code(name) END",
        count="1 + (random() * 20)::int",
        waits="""'{"1": 4, "3": 5, "6": 1}'""",
        runs="""'{"4": 2, "5": 6, "6": 2, "9": 1}'""",
    )

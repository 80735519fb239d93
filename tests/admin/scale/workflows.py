"""Fill the workflows and their nodes."""

from __future__ import annotations

from horsies_django.models import Workflow, WorkflowEvent, WorkflowTask

from .fill import fill
from .sizes import GRAPH, LARGE, MAP, QUEUES


def workflows(database: str) -> None:
    """Insert 20,000 workflows, 200 subworkflows, and three large workflows.

    Those of the last day are still running, but for two that failed.
    """
    status = """CASE WHEN w > 19950 AND w % 33 = 0 THEN 'FAILED'
        WHEN w > 19220 AND w % 40 = 0 OR w < 500 AND w % 10 = 0 THEN 'PAUSED'
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
        completed_at="""CASE status WHEN 'COMPLETED' THEN sent_at + interval '90 seconds'
            WHEN 'FAILED' THEN sent_at + interval '40 seconds' END""",
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
    """Insert two diamonds of nodes per workflow; large ones get layers; each node waits for two of the one before."""
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
        queue_name=f"{QUEUES}[1 + i]",
        open_deps="CASE WHEN status = 'PENDING' THEN jsonb_array_length(" + waits + ") ELSE 0 END",
        started_at=f"CASE WHEN {begun} THEN sent_at + (1 + 10 * i) * interval '1 second' END",
        completed_at=f"CASE WHEN {begun} THEN sent_at + (9 + 10 * i) * interval '1 second' END",
        result="""CASE status WHEN 'COMPLETED' THEN '{"ok": 1}'::jsonb END""",
        error_code="CASE status WHEN 'FAILED' THEN 'SHOP_ERROR_3' END",
    )
    _layers(database, LARGE, nodes=10_000, width=100, done=6_000, residue=33)
    _layers(database, GRAPH, nodes=500, width=10, done=300, residue=37)
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
    first = f"i / {width} * {width}"
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

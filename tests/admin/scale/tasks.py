"""Fill the tasks, their attempts, the error groups, the heartbeats of their workers, and the roll-ups."""

from __future__ import annotations

from horsies_django.models import ErrorGroup, Heartbeat, Rollup, Task, TaskAttempt

from .fill import fill
from .sizes import APPS, FIFTY_ATTEMPTS, HUGE, ONLY_ONE, QUEUES, STATUS, TASKS


def tasks(database: str, number: int = TASKS) -> None:
    """Insert the newest ``number`` of a million tasks, most of them completed."""
    plan = f"""(SELECT plan.*, {QUEUES}[1 + name_number % 8] AS queue,
            {APPS}[1 + name_number / 20] AS app,
            least(sent_at + wait, now()) AS begun, least(sent_at + wait + run, now()) AS ended,
            flow.root_id
        FROM (SELECT n, pg_temp.key(n, 't') AS id, pg_temp.sent(n) AS sent_at, {STATUS} AS what,
                floor(200 * power(random(), 2.5))::int AS name_number,
                CASE WHEN n % 100 = 19 THEN interval '10 minutes' ELSE pg_temp.seconds(0.05, 1.5) END AS wait,
                pg_temp.seconds(0.4, 1.2) AS run
            FROM generate_series({TASKS - number + 1}, {TASKS}) AS n) AS plan
        LEFT JOIN (SELECT task_id, root_id FROM horsies_workflow_tasks AS node
            JOIN horsies_workflows AS flow ON flow.id = workflow_id WHERE task_id IS NOT NULL) AS flow
        ON task_id = plan.id) AS plan"""
    has_run = "what IN ('COMPLETED', 'FAILED', 'RUNNING')"
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
        claim=f"CASE WHEN {has_run} OR what IN ('CLAIMED', 'RETRYING') THEN 1 ELSE 0 END",
        claimed_by_worker_id=f"""CASE WHEN what IN ('RUNNING', 'CLAIMED') THEN pg_temp.worker(n / 50 % 40 + 1)
            WHEN {has_run} THEN pg_temp.worker(n / 5000 + 1) END""",
        claimed_at=f"CASE WHEN {has_run} OR what = 'CLAIMED' THEN begun END",
        started_at=f"CASE WHEN {has_run} THEN begun END",
        completed_at="CASE what WHEN 'COMPLETED' THEN ended END",
        failed_at="CASE what WHEN 'FAILED' THEN ended END",
        cancelled_at="CASE what WHEN 'CANCELLED' THEN begun END",
        expired_at="CASE what WHEN 'EXPIRED' THEN begun END",
        next_retry_at=f"CASE what WHEN 'RETRYING' THEN {later} END",
        good_until="CASE WHEN n % 500 = 250 THEN sent_at + interval '3 days' WHEN what = 'EXPIRED' THEN sent_at END",
        attempt=f"""CASE WHEN n = {FIFTY_ATTEMPTS} THEN 50 WHEN what = 'FAILED' THEN 3 WHEN what = 'RETRYING' THEN 2
            WHEN {has_run} THEN 1 + (n % 45 = 5)::int ELSE 0 END""",
        retry_count=f"""CASE WHEN n = {FIFTY_ATTEMPTS} THEN 49 WHEN what IN ('FAILED', 'RETRYING') THEN 2
            ELSE 0 END""",
        max_retries=f"CASE WHEN n = {FIFTY_ATTEMPTS} THEN 49 ELSE 2 END",
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
            """CASE WHEN what IN ('FAILED', 'RETRYING') THEN pg_temp.code(n)
            WHEN what IN ('CANCELLED', 'EXPIRED') THEN 'TASK_' || what END""",
        ),
        fingerprint=f"""CASE WHEN what IN ('FAILED', 'RETRYING') THEN pg_temp.fingerprint(
            {_only("'ONLY_ONE'", "pg_temp.code(n)")}, 'shop.' || app || '.clients.send') END""",
    )


def _only(value: str, otherwise: str) -> str:
    return f"CASE n WHEN {ONLY_ONE} THEN {value} ELSE {otherwise} END"


def attempts(database: str) -> None:
    """Insert 1,100,000 attempts; all but the last of each task failed."""
    source = """(SELECT task.*, try, try < attempt OR status <> 'COMPLETED' AS is_bad,
            hashtext(id::text) & 65535 AS dice
        FROM horsies_tasks AS task, generate_series(1, attempt - (status = 'RUNNING')::int) AS try) AS plan"""
    code = "coalesce(error_code, pg_temp.code(dice))"
    at = "coalesce(started_at, sent_at) - (attempt - try) * interval '20 seconds'"
    fill(
        database,
        TaskAttempt,
        source,
        task_id="id",
        attempt="try",
        will_retry="is_bad AND status <> 'FAILED'",
        outcome="""CASE WHEN NOT is_bad THEN 'COMPLETED' WHEN dice % 9 = 0 THEN 'WORKER_FAILURE' ELSE 'FAILED' END""",
        due_at=f"{at} - interval '1 second'",
        started_at=at,
        finished_at=f"least({at} + coalesce(completed_at - started_at, failed_at - started_at, '1 second'), now())",
        error_code=f"CASE WHEN is_bad THEN {code} ELSE '' END",
        error_message="CASE WHEN is_bad THEN 'the server said ' || dice ELSE '' END",
        exception_class="CASE WHEN is_bad THEN 'shop.errors.Refused' ELSE '' END",
        location="CASE WHEN is_bad THEN pg_temp.location(task_name) ELSE '' END",
        fingerprint=f"""CASE WHEN is_bad
            THEN coalesce(fingerprint, pg_temp.fingerprint({code}, pg_temp.location(task_name))) ELSE '' END""",
        traceback="CASE WHEN is_bad THEN pg_temp.stack(dice) ELSE '' END",
        worker_id="coalesce(claimed_by_worker_id, 'web-1')",
        hostname="'node1.example.org'",
        pid="4242",
    )


def error_groups(database: str) -> None:
    """Insert the error groups of the attempts: one for each code and app, about 600."""
    source = """(SELECT fingerprint, min(exception_class) AS class, min(error_code) AS code, min(location) AS location,
            min(finished_at) AS first, max(finished_at) AS last, max(id) AS newest
        FROM horsies_task_attempts WHERE fingerprint <> '' GROUP BY fingerprint) AS plan"""
    fill(
        database,
        ErrorGroup,
        source,
        fingerprint="fingerprint",
        exception_class="class",
        error_code="code",
        location="location",
        first_seen_at="first",
        last_seen_at="last",
        last_attempt_id="newest",
    )


def heartbeats(database: str) -> None:
    """Insert 300 heartbeats of each held task, one per half minute, and three of each task that ended last day."""
    held = "horsies_tasks AS task, generate_series(0, 299) AS n WHERE status IN ('RUNNING', 'CLAIMED')"
    heartbeat = {
        "task_id": "task.id",
        "hostname": "'node1.example.org'",
        "pid": "4242",
        "role": "CASE status WHEN 'CLAIMED' THEN 'claimer' ELSE 'runner' END",
        "sender_id": "coalesce(claimed_by_worker_id, 'web-1')",
    }
    fill(database, Heartbeat, held, sent_at="now() - n * interval '30 seconds'", **heartbeat)
    ended = """horsies_tasks AS task, generate_series(0, 2) AS n
        WHERE task.id > pg_temp.key(966667, '') AND started_at IS NOT NULL AND status <> 'RUNNING'"""
    fill(database, Heartbeat, ended, sent_at="started_at + n * interval '30 seconds'", **heartbeat)


def rollups(database: str) -> None:
    """Insert counts of 200 tasks for each hour of the month and each minute of the last three hours."""
    source = """(SELECT span, start, name, bad, {apps}[1 + name / 20] AS app, {queues}[1 + name % 8] AS queue
        FROM (SELECT 'H' AS span, date_trunc('hour', now()) - n * interval '1 hour' AS start
                FROM generate_series(0, 719) AS n
            UNION ALL SELECT 'M', date_trunc('minute', now()) - n * interval '1 minute'
                FROM generate_series(0, 179) AS n) AS spans, generate_series(0, 199) AS name,
            generate_series(0, 1) AS bad WHERE bad = 0 OR name % 5 = 0) AS plan"""
    fill(
        database,
        Rollup,
        source.format(apps=APPS, queues=QUEUES),
        span="span",
        start="start",
        queue_name="queue",
        task_name="'shop.' || app || '.tasks.task_' || lpad(name::text, 3, '0')",
        outcome="CASE bad WHEN 0 THEN 'COMPLETED' ELSE 'FAILED' END",
        will_retry="false",
        error_code="CASE bad WHEN 0 THEN '' ELSE pg_temp.code(name) END",
        fingerprint="""CASE bad WHEN 0 THEN '' ELSE
            pg_temp.fingerprint(pg_temp.code(name), 'shop.' || app || '.clients.send') END""",
        count="1 + (random() * CASE bad WHEN 0 THEN 20 ELSE 1 END)::int",
        waits="""'{"1": 4, "3": 5, "6": 1}'""",
        runs="""'{"4": 2, "5": 6, "6": 2, "9": 1}'""",
        run_seconds="(1 + name % 7) * 0.2",
    )

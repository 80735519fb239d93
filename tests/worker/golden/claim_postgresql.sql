-- of one queue
WITH completed AS (UPDATE "horsies_tasks"
  SET "status" = 'COMPLETED', "started_at" = GREATEST((STATEMENT_TIMESTAMP() + make_interval(secs => ((:seconds::jsonb
      ->> ("id")::text)::double precision)::double precision)), "claimed_at"), "result" = (:results::jsonb ->
      ("id")::text), "error_code" = NULL, "fingerprint" = NULL, "completed_at" = STATEMENT_TIMESTAMP(), "kept_until" =
      (STATEMENT_TIMESTAMP() + NULLIF(LEAST(COALESCE("retention", '7 days 0:00:00'::interval), INTERVAL '36500 days'),
      INTERVAL '36500 days'))
  WHERE ("id" = ANY(:ended::uuid[])
    AND "claim" = (:claims::jsonb ->> ("id")::text)::bigint
    AND "claimed_by_worker_id" = 'a-worker'
    AND "status" = 'RUNNING')
  RETURNING *),
recorded AS (WITH "horsies_tasks" AS (
    SELECT *
    FROM completed)
  INSERT INTO "horsies_task_attempts" ("task_id", "attempt", "outcome", "will_retry", "due_at", "started_at",
      "finished_at", "worker_id", "hostname", "pid", "error_code", "error_message", "traceback", "exception_class")
  SELECT "id", GREATEST("attempt", 1), 'COMPLETED', false, GREATEST("enqueued_at", COALESCE("released_at",
      "enqueued_at")), COALESCE("started_at", STATEMENT_TIMESTAMP()), STATEMENT_TIMESTAMP(),
      COALESCE("claimed_by_worker_id", ''), 'a-host', 7, '', '', '', ''
  FROM "horsies_tasks"),
picked (key) AS MATERIALIZED (
  SELECT "id", "task_name", "queue_name", "backend", "priority", ("args")::text, ("kwargs")::text, "typed_payload",
      ("claim" + 1), ("attempt" + 1), "retry_count", "max_retries", ("retry_policy")::text, "is_async",
      ("metadata")::text, ("enqueued_at")::text, "timeout", "retention", "workflow_id", "has_inputs", "limit_key",
      "about_model", "about_id", EXTRACT(EPOCH FROM "good_until" - STATEMENT_TIMESTAMP())::double precision
  FROM "horsies_tasks"
  WHERE ((
      SELECT count(*)
      FROM completed) >= 0
    AND "status" = 'PENDING'
    AND NOT "deferred"
    AND "is_async" IN (false)
    AND "status" = 'PENDING'
    AND ("good_until" IS NULL
      OR "good_until" > (STATEMENT_TIMESTAMP()))
    AND "enqueued_at" <= (STATEMENT_TIMESTAMP())
    AND "queue_name" = (
      SELECT :queue::text
      WHERE NOT EXISTS (
        SELECT "horsies_queues"."id"
        FROM "horsies_queues"
        WHERE ("horsies_queues"."paused"
          AND "horsies_queues"."name" = (:queue::text)))))
  ORDER BY 5 DESC, "enqueued_at" ASC, 1 ASC
  LIMIT :room
  FOR NO KEY UPDATE SKIP LOCKED),
taken AS (UPDATE "horsies_tasks"
  SET "status" = 'RUNNING', "claimed_at" = STATEMENT_TIMESTAMP(), "claimed_by_worker_id" = 'a-worker', "claim" =
      ("claim" + 1), "next_retry_at" = NULL, "started_at" = STATEMENT_TIMESTAMP(), "attempt" = ("attempt" + 1)
  WHERE ("status" = 'PENDING'
    AND "id" = ANY(ARRAY(SELECT key FROM picked)))
  RETURNING id)
SELECT *, (
  SELECT count(*)
  FROM taken)
FROM picked;

-- of one queue, from the cursor on
WITH completed AS (UPDATE "horsies_tasks"
  SET "status" = 'COMPLETED', "started_at" = GREATEST((STATEMENT_TIMESTAMP() + make_interval(secs => ((:seconds::jsonb
      ->> ("id")::text)::double precision)::double precision)), "claimed_at"), "result" = (:results::jsonb ->
      ("id")::text), "error_code" = NULL, "fingerprint" = NULL, "completed_at" = STATEMENT_TIMESTAMP(), "kept_until" =
      (STATEMENT_TIMESTAMP() + NULLIF(LEAST(COALESCE("retention", '7 days 0:00:00'::interval), INTERVAL '36500 days'),
      INTERVAL '36500 days'))
  WHERE ("id" = ANY(:ended::uuid[])
    AND "claim" = (:claims::jsonb ->> ("id")::text)::bigint
    AND "claimed_by_worker_id" = 'a-worker'
    AND "status" = 'RUNNING')
  RETURNING *),
recorded AS (WITH "horsies_tasks" AS (
    SELECT *
    FROM completed)
  INSERT INTO "horsies_task_attempts" ("task_id", "attempt", "outcome", "will_retry", "due_at", "started_at",
      "finished_at", "worker_id", "hostname", "pid", "error_code", "error_message", "traceback", "exception_class")
  SELECT "id", GREATEST("attempt", 1), 'COMPLETED', false, GREATEST("enqueued_at", COALESCE("released_at",
      "enqueued_at")), COALESCE("started_at", STATEMENT_TIMESTAMP()), STATEMENT_TIMESTAMP(),
      COALESCE("claimed_by_worker_id", ''), 'a-host', 7, '', '', '', ''
  FROM "horsies_tasks"),
picked (key) AS MATERIALIZED (
  SELECT "id", "task_name", "queue_name", "backend", "priority", ("args")::text, ("kwargs")::text, "typed_payload",
      ("claim" + 1), ("attempt" + 1), "retry_count", "max_retries", ("retry_policy")::text, "is_async",
      ("metadata")::text, ("enqueued_at")::text, "timeout", "retention", "workflow_id", "has_inputs", "limit_key",
      "about_model", "about_id", EXTRACT(EPOCH FROM "good_until" - STATEMENT_TIMESTAMP())::double precision
  FROM "horsies_tasks"
  WHERE ((
      SELECT count(*)
      FROM completed) >= 0
    AND "status" = 'PENDING'
    AND NOT "deferred"
    AND "is_async" IN (false)
    AND "status" = 'PENDING'
    AND ("good_until" IS NULL
      OR "good_until" > (STATEMENT_TIMESTAMP()))
    AND "enqueued_at" <= (STATEMENT_TIMESTAMP())
    AND "queue_name" = (
      SELECT :queue::text
      WHERE NOT EXISTS (
        SELECT "horsies_queues"."id"
        FROM "horsies_queues"
        WHERE ("horsies_queues"."paused"
          AND "horsies_queues"."name" = (:queue::text))))
    AND ("enqueued_at", "id") > (:cursor_time::timestamptz, :cursor_id::uuid)
    AND "priority" = (:cursor_priority::smallint))
  ORDER BY 5 DESC, "enqueued_at" ASC, 1 ASC
  LIMIT :room
  FOR NO KEY UPDATE SKIP LOCKED),
taken AS (UPDATE "horsies_tasks"
  SET "status" = 'RUNNING', "claimed_at" = STATEMENT_TIMESTAMP(), "claimed_by_worker_id" = 'a-worker', "claim" =
      ("claim" + 1), "next_retry_at" = NULL, "started_at" = STATEMENT_TIMESTAMP(), "attempt" = ("attempt" + 1)
  WHERE ("status" = 'PENDING'
    AND "id" = ANY(ARRAY(SELECT key FROM picked)))
  RETURNING id)
SELECT *, (
  SELECT count(*)
  FROM taken)
FROM picked;

-- of several queues
WITH completed AS (UPDATE "horsies_tasks"
  SET "status" = 'COMPLETED', "started_at" = GREATEST((STATEMENT_TIMESTAMP() + make_interval(secs => ((:seconds::jsonb
      ->> ("id")::text)::double precision)::double precision)), "claimed_at"), "result" = (:results::jsonb ->
      ("id")::text), "error_code" = NULL, "fingerprint" = NULL, "completed_at" = STATEMENT_TIMESTAMP(), "kept_until" =
      (STATEMENT_TIMESTAMP() + NULLIF(LEAST(COALESCE("retention", '7 days 0:00:00'::interval), INTERVAL '36500 days'),
      INTERVAL '36500 days'))
  WHERE ("id" = ANY(:ended::uuid[])
    AND "claim" = (:claims::jsonb ->> ("id")::text)::bigint
    AND "claimed_by_worker_id" = 'a-worker'
    AND "status" = 'RUNNING')
  RETURNING *),
recorded AS (WITH "horsies_tasks" AS (
    SELECT *
    FROM completed)
  INSERT INTO "horsies_task_attempts" ("task_id", "attempt", "outcome", "will_retry", "due_at", "started_at",
      "finished_at", "worker_id", "hostname", "pid", "error_code", "error_message", "traceback", "exception_class")
  SELECT "id", GREATEST("attempt", 1), 'COMPLETED', false, GREATEST("enqueued_at", COALESCE("released_at",
      "enqueued_at")), COALESCE("started_at", STATEMENT_TIMESTAMP()), STATEMENT_TIMESTAMP(),
      COALESCE("claimed_by_worker_id", ''), 'a-host', 7, '', '', '', ''
  FROM "horsies_tasks"),
picked (key) AS MATERIALIZED (
  SELECT "id", "task_name", "queue_name", "backend", "priority", ("args")::text, ("kwargs")::text, "typed_payload",
      ("claim" + 1), ("attempt" + 1), "retry_count", "max_retries", ("retry_policy")::text, "is_async",
      ("metadata")::text, ("enqueued_at")::text, "timeout", "retention", "workflow_id", "has_inputs", "limit_key",
      "about_model", "about_id", EXTRACT(EPOCH FROM "good_until" - STATEMENT_TIMESTAMP())::double precision
  FROM "horsies_tasks"
  WHERE ((
      SELECT count(*)
      FROM completed) >= 0
    AND "status" = 'PENDING'
    AND ("good_until" IS NULL
      OR "good_until" > (STATEMENT_TIMESTAMP()))
    AND "enqueued_at" <= (STATEMENT_TIMESTAMP())
    AND "id" = ANY(ARRAY(SELECT first.id FROM (
          SELECT *
          FROM unnest(:queues::text[], :caps::integer[]) AS named (name, cap)
          WHERE name NOT IN (
            SELECT "horsies_queues"."name"
            FROM "horsies_queues"
            WHERE "horsies_queues"."paused")) AS waiting
        CROSS JOIN LATERAL (
          SELECT "id", "priority", "enqueued_at"
          FROM "horsies_tasks"
          WHERE ("status" = 'PENDING'
            AND NOT "deferred"
            AND "is_async" IN (false)
            AND "status" = 'PENDING'
            AND ("good_until" IS NULL
              OR "good_until" > (STATEMENT_TIMESTAMP()))
            AND "enqueued_at" <= (STATEMENT_TIMESTAMP())
            AND "queue_name" = (waiting.name))
          ORDER BY 2 DESC, 3 ASC, 1 ASC
          LIMIT waiting.cap) AS first (id, priority, enqueued_at)
        ORDER BY first.priority DESC, first.enqueued_at, first.id
        LIMIT :candidates)))
  ORDER BY ("priority" *  -1) ASC, "enqueued_at" ASC, 1 ASC
  LIMIT :room
  FOR NO KEY UPDATE SKIP LOCKED),
taken AS (UPDATE "horsies_tasks"
  SET "status" = 'RUNNING', "claimed_at" = STATEMENT_TIMESTAMP(), "claimed_by_worker_id" = 'a-worker', "claim" =
      ("claim" + 1), "next_retry_at" = NULL, "started_at" = STATEMENT_TIMESTAMP(), "attempt" = ("attempt" + 1)
  WHERE ("status" = 'PENDING'
    AND "id" = ANY(ARRAY(SELECT key FROM picked)))
  RETURNING id)
SELECT *, (
  SELECT count(*)
  FROM taken)
FROM picked;

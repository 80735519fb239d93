-- store results
UPDATE "horsies_tasks"
SET "status" = :COMPLETED, "started_at" = MAX(STRFTIME('%Y-%m-%d %H:%M:%f', 'NOW', PRINTF('%.3f seconds',
    json_extract(:seconds, '$."' || "horsies_tasks"."id" || '"'))), "horsies_tasks"."claimed_at"), "result" =
    json_extract(:results, '$."' || "horsies_tasks"."id" || '"'), "error_code" = NULL, "fingerprint" = NULL,
    "completed_at" = STRFTIME('%Y-%m-%d %H:%M:%f', 'NOW'), "kept_until" = STRFTIME('%Y-%m-%d %H:%M:%f', 'NOW',
    (NULLIF(MIN(COALESCE("horsies_tasks"."retention", 604800000000), 3153600000000000), 3153600000000000) / 1e6) || '
    seconds')
WHERE ("horsies_tasks"."id" IN (
    SELECT value
    FROM json_each(:ended))
  AND "horsies_tasks"."claim" = (json_extract(:claims, '$."' || "horsies_tasks"."id" || '"'))
  AND "horsies_tasks"."claimed_by_worker_id" = 'a-worker'
  AND "horsies_tasks"."status" = 'RUNNING');

-- record attempts
INSERT
OR IGNORE INTO "horsies_task_attempts" ("task_id", "attempt", "outcome", "will_retry", "due_at", "started_at",
    "finished_at", "worker_id", "hostname", "pid", "error_code", "error_message", "traceback", "exception_class")
SELECT "horsies_tasks"."id" AS "f1", MAX("horsies_tasks"."attempt", 1) AS "greatest1", 'COMPLETED' AS "value1", False
    AS "value2", MAX("horsies_tasks"."enqueued_at", COALESCE("horsies_tasks"."released_at",
    "horsies_tasks"."enqueued_at")) AS "greatest2", COALESCE("horsies_tasks"."started_at", STRFTIME('%Y-%m-%d
    %H:%M:%f', 'NOW')) AS "coalesce1", STRFTIME('%Y-%m-%d %H:%M:%f', 'NOW') AS "now1",
    COALESCE("horsies_tasks"."claimed_by_worker_id", '') AS "coalesce2", 'a-host' AS "value3", 7 AS "value4", '' AS
    "value5", '' AS "value6", '' AS "value7", '' AS "value8"
FROM "horsies_tasks"
WHERE ("horsies_tasks"."id" IN (
    SELECT value
    FROM json_each(:ended))
  AND "horsies_tasks"."claim" = (json_extract(:claims, '$."' || "horsies_tasks"."id" || '"'))
  AND "horsies_tasks"."claimed_by_worker_id" = 'a-worker'
  AND "horsies_tasks"."status" = :COMPLETED);

-- pick, of one queue
SELECT "horsies_tasks"."id" AS "pk", "horsies_tasks"."task_name" AS "task_name", "horsies_tasks"."queue_name" AS
    "queue_name", "horsies_tasks"."backend" AS "backend", "horsies_tasks"."priority" AS "priority",
    CAST("horsies_tasks"."args" AS text) AS "cast1", CAST("horsies_tasks"."kwargs" AS text) AS "cast2",
    "horsies_tasks"."typed_payload" AS "typed_payload", ("horsies_tasks"."claim" + 1) AS "combinedexpression1",
    ("horsies_tasks"."attempt" + 1) AS "combinedexpression2", "horsies_tasks"."retry_count" AS "retry_count",
    "horsies_tasks"."max_retries" AS "max_retries", CAST("horsies_tasks"."retry_policy" AS text) AS "cast3",
    "horsies_tasks"."is_async" AS "is_async", CAST("horsies_tasks"."metadata" AS text) AS "cast4",
    CAST("horsies_tasks"."enqueued_at" AS text) AS "cast5", "horsies_tasks"."timeout" AS "timeout", CASE WHEN
    ("horsies_tasks"."retention" >= 0
  AND "horsies_tasks"."retention" <= 3153600000000000) THEN "horsies_tasks"."retention" ELSE NULL END AS "case1",
      "horsies_tasks"."workflow_id" AS "workflow_id", "horsies_tasks"."has_inputs" AS "has_inputs",
      "horsies_tasks"."limit_key" AS "limit_key", CASE WHEN ("horsies_tasks"."enqueued_at" < '1899-01-01 00:00:00'
  OR "horsies_tasks"."enqueued_at" > '9998-12-31 23:59:59.999999'
  OR "horsies_tasks"."run_after" < '1899-01-01 00:00:00'
  OR "horsies_tasks"."run_after" > '9998-12-31 23:59:59.999999'
  OR "horsies_tasks"."good_until" < '1899-01-01 00:00:00'
  OR "horsies_tasks"."good_until" > '9998-12-31 23:59:59.999999'
  OR "horsies_tasks"."claim" < 0
  OR "horsies_tasks"."claim" > 4611686018427387904
  OR "horsies_tasks"."attempt" < 0
  OR "horsies_tasks"."attempt" > 1000000000
  OR "horsies_tasks"."timeout" < 0.0
  OR "horsies_tasks"."timeout" > 3153600000.0
  OR "horsies_tasks"."retention" < 0
  OR "horsies_tasks"."retention" > 3153600000000000) THEN False ELSE True END AS "isinrange1",
      ((JULIANDAY("horsies_tasks"."good_until") - JULIANDAY('NOW')) * 86400.0) AS "secondsuntil1"
FROM "horsies_tasks"
WHERE ("horsies_tasks"."status" = :PENDING
  AND NOT "horsies_tasks"."deferred"
  AND "horsies_tasks"."is_async" IN (False)
  AND "horsies_tasks"."status" = :PENDING
  AND ("horsies_tasks"."good_until" IS NULL
    OR "horsies_tasks"."good_until" > (STRFTIME('%Y-%m-%d %H:%M:%f', 'NOW')))
  AND "horsies_tasks"."enqueued_at" <= (STRFTIME('%Y-%m-%d %H:%M:%f', 'NOW'))
  AND "horsies_tasks"."queue_name" = (
    SELECT :queue
    WHERE NOT EXISTS (
      SELECT "horsies_queues"."id" AS "pk"
      FROM "horsies_queues"
      WHERE ("horsies_queues"."paused"
        AND "horsies_queues"."name" = (:queue)))))
ORDER BY 5 DESC, "horsies_tasks"."enqueued_at" ASC, 1 ASC
LIMIT :room;

-- first of one of several queues
SELECT "horsies_tasks"."priority" AS "priority", CASE WHEN "horsies_tasks"."enqueued_at" < '1899-01-01 00:00:00' THEN
    '1899-01-01 00:00:00' WHEN "horsies_tasks"."enqueued_at" > '9998-12-31 23:59:59.999999' THEN '9998-12-31
    23:59:59.999999' ELSE "horsies_tasks"."enqueued_at" END AS "enqueued_at", "horsies_tasks"."id" AS "pk"
FROM "horsies_tasks"
WHERE ("horsies_tasks"."status" = :PENDING
  AND NOT "horsies_tasks"."deferred"
  AND "horsies_tasks"."is_async" IN (False)
  AND "horsies_tasks"."status" = :PENDING
  AND ("horsies_tasks"."good_until" IS NULL
    OR "horsies_tasks"."good_until" > (STRFTIME('%Y-%m-%d %H:%M:%f', 'NOW')))
  AND "horsies_tasks"."enqueued_at" <= (STRFTIME('%Y-%m-%d %H:%M:%f', 'NOW'))
  AND "horsies_tasks"."queue_name" = (
    SELECT :queue
    WHERE NOT EXISTS (
      SELECT "horsies_queues"."id" AS "pk"
      FROM "horsies_queues"
      WHERE ("horsies_queues"."paused"
        AND "horsies_queues"."name" = (:queue)))))
ORDER BY 1 DESC, 2 ASC, 3 ASC
LIMIT :room;

-- pick, among the first of several queues
SELECT "horsies_tasks"."id" AS "pk", "horsies_tasks"."task_name" AS "task_name", "horsies_tasks"."queue_name" AS
    "queue_name", "horsies_tasks"."backend" AS "backend", "horsies_tasks"."priority" AS "priority",
    CAST("horsies_tasks"."args" AS text) AS "cast1", CAST("horsies_tasks"."kwargs" AS text) AS "cast2",
    "horsies_tasks"."typed_payload" AS "typed_payload", ("horsies_tasks"."claim" + 1) AS "combinedexpression1",
    ("horsies_tasks"."attempt" + 1) AS "combinedexpression2", "horsies_tasks"."retry_count" AS "retry_count",
    "horsies_tasks"."max_retries" AS "max_retries", CAST("horsies_tasks"."retry_policy" AS text) AS "cast3",
    "horsies_tasks"."is_async" AS "is_async", CAST("horsies_tasks"."metadata" AS text) AS "cast4",
    CAST("horsies_tasks"."enqueued_at" AS text) AS "cast5", "horsies_tasks"."timeout" AS "timeout", CASE WHEN
    ("horsies_tasks"."retention" >= 0
  AND "horsies_tasks"."retention" <= 3153600000000000) THEN "horsies_tasks"."retention" ELSE NULL END AS "case1",
      "horsies_tasks"."workflow_id" AS "workflow_id", "horsies_tasks"."has_inputs" AS "has_inputs",
      "horsies_tasks"."limit_key" AS "limit_key", CASE WHEN ("horsies_tasks"."enqueued_at" < '1899-01-01 00:00:00'
  OR "horsies_tasks"."enqueued_at" > '9998-12-31 23:59:59.999999'
  OR "horsies_tasks"."run_after" < '1899-01-01 00:00:00'
  OR "horsies_tasks"."run_after" > '9998-12-31 23:59:59.999999'
  OR "horsies_tasks"."good_until" < '1899-01-01 00:00:00'
  OR "horsies_tasks"."good_until" > '9998-12-31 23:59:59.999999'
  OR "horsies_tasks"."claim" < 0
  OR "horsies_tasks"."claim" > 4611686018427387904
  OR "horsies_tasks"."attempt" < 0
  OR "horsies_tasks"."attempt" > 1000000000
  OR "horsies_tasks"."timeout" < 0.0
  OR "horsies_tasks"."timeout" > 3153600000.0
  OR "horsies_tasks"."retention" < 0
  OR "horsies_tasks"."retention" > 3153600000000000) THEN False ELSE True END AS "isinrange1",
      ((JULIANDAY("horsies_tasks"."good_until") - JULIANDAY('NOW')) * 86400.0) AS "secondsuntil1"
FROM "horsies_tasks"
WHERE ("horsies_tasks"."status" = :PENDING
  AND ("horsies_tasks"."good_until" IS NULL
    OR "horsies_tasks"."good_until" > (STRFTIME('%Y-%m-%d %H:%M:%f', 'NOW')))
  AND "horsies_tasks"."enqueued_at" <= (STRFTIME('%Y-%m-%d %H:%M:%f', 'NOW'))
  AND "horsies_tasks"."id" IN (
    SELECT value
    FROM json_each(:picked)))
ORDER BY ("horsies_tasks"."priority" * -1) ASC, "horsies_tasks"."enqueued_at" ASC, 1 ASC
LIMIT :room;

-- take
UPDATE "horsies_tasks"
SET "status" = :RUNNING, "claimed_at" = STRFTIME('%Y-%m-%d %H:%M:%f', 'NOW'), "claimed_by_worker_id" = 'a-worker',
    "claim" = ("horsies_tasks"."claim" + 1), "next_retry_at" = NULL, "started_at" = STRFTIME('%Y-%m-%d %H:%M:%f',
    'NOW'), "attempt" = ("horsies_tasks"."attempt" + 1)
WHERE ("horsies_tasks"."status" = 'PENDING'
  AND "horsies_tasks"."id" IN (
    SELECT value
    FROM json_each(:picked)));

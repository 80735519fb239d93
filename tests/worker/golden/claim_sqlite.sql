-- store results
UPDATE "horsies_tasks"
SET "status" = :COMPLETED, "started_at" = MAX(STRFTIME('%Y-%m-%d %H:%M:%f', 'NOW', PRINTF('%.3f seconds',
    json_extract(:seconds, '$."' || "id" || '"'))), "claimed_at"), "result" = json_extract(:results, '$."' || "id" ||
    '"'), "error_code" = NULL, "fingerprint" = NULL, "completed_at" = STRFTIME('%Y-%m-%d %H:%M:%f', 'NOW'),
    "kept_until" = STRFTIME('%Y-%m-%d %H:%M:%f', 'NOW', (NULLIF(MIN(COALESCE("retention", 604800000000),
    3153600000000000), 3153600000000000) / 1e6) || ' seconds')
WHERE ("id" IN (
    SELECT value
    FROM json_each(:ended))
  AND "claim" = (json_extract(:claims, '$."' || "id" || '"'))
  AND "claimed_by_worker_id" = 'a-worker'
  AND "status" = 'RUNNING');

-- record attempts
INSERT
OR IGNORE INTO "horsies_task_attempts" ("task_id", "attempt", "outcome", "will_retry", "due_at", "started_at",
    "finished_at", "worker_id", "hostname", "pid", "error_code", "error_message", "traceback", "exception_class")
SELECT "id", MAX("attempt", 1), 'COMPLETED', False, MAX("enqueued_at", COALESCE("released_at", "enqueued_at")),
    COALESCE("started_at", STRFTIME('%Y-%m-%d %H:%M:%f', 'NOW')), STRFTIME('%Y-%m-%d %H:%M:%f', 'NOW'),
    COALESCE("claimed_by_worker_id", ''), 'a-host', 7, '', '', '', ''
FROM "horsies_tasks"
WHERE ("id" IN (
    SELECT value
    FROM json_each(:ended))
  AND "claim" = (json_extract(:claims, '$."' || "id" || '"'))
  AND "claimed_by_worker_id" = 'a-worker'
  AND "status" = :COMPLETED);

-- pick, of one queue
SELECT "id", "task_name", "queue_name", "backend", "priority", CAST("args" AS text), CAST("kwargs" AS text),
    "typed_payload", ("claim" + 1), ("attempt" + 1), "retry_count", "max_retries", CAST("retry_policy" AS text),
    "is_async", CAST("metadata" AS text), CAST("enqueued_at" AS text), "timeout", "retention", "workflow_id",
    "has_inputs", "limit_key", "about_model", "about_id", ((JULIANDAY("good_until") - JULIANDAY('NOW')) * 86400.0)
FROM "horsies_tasks"
WHERE ("status" = :PENDING
  AND NOT "deferred"
  AND "is_async" IN (False)
  AND "status" = :PENDING
  AND ("good_until" IS NULL
    OR "good_until" > (STRFTIME('%Y-%m-%d %H:%M:%f', 'NOW')))
  AND "enqueued_at" <= (STRFTIME('%Y-%m-%d %H:%M:%f', 'NOW'))
  AND "queue_name" = (
    SELECT :queue
    WHERE NOT EXISTS (
      SELECT "horsies_queues"."id"
      FROM "horsies_queues"
      WHERE ("horsies_queues"."paused"
        AND "horsies_queues"."name" = (:queue)))))
ORDER BY 5 DESC, "enqueued_at" ASC, 1 ASC
LIMIT :room;

-- take
UPDATE "horsies_tasks"
SET "status" = :RUNNING, "claimed_at" = STRFTIME('%Y-%m-%d %H:%M:%f', 'NOW'), "claimed_by_worker_id" = 'a-worker',
    "claim" = ("claim" + 1), "next_retry_at" = NULL, "started_at" = STRFTIME('%Y-%m-%d %H:%M:%f', 'NOW'), "attempt" =
    ("attempt" + 1)
WHERE ("status" = 'PENDING'
  AND "id" IN (
    SELECT value
    FROM json_each(:picked)));

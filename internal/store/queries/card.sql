-- name: InsertCardSpan :exec
INSERT INTO card_spans (id, tenant, namespace, job_id, task_group, task, alloc_id, node_id, group_name, units, per_card, began_at, ended_at)
VALUES (@id, @tenant, @namespace, @job_id, @task_group, @task, @alloc_id, @node_id, @group_name, @units, @per_card, @began_at, @ended_at);

-- name: ListCardSpansOfJob :many
SELECT * FROM card_spans WHERE namespace = @namespace AND job_id = @job_id AND ended_at = @ended_at ORDER BY id;

-- name: EndCardSpan :exec
UPDATE card_spans SET ended_at = @ended_at WHERE id = @id;

-- name: ListCardSpans :many
SELECT * FROM card_spans WHERE ended_at > @from_at AND began_at < @to_at ORDER BY ended_at, id;

-- name: ListWork :many
SELECT id, backend, tenant, key_id, endpoint_id, model, prompt_tokens, cached_tokens, completion_tokens, started_at, duration_us
FROM usage_records
WHERE started_at >= @after_started AND started_at < @to_at AND (started_at > @after_started OR id > @after_id)
  AND started_at + duration_us > @from_at AND backend <> ''
ORDER BY started_at, id
LIMIT @max_rows;

-- name: GetCardClock :one
SELECT settled_to FROM card_clock WHERE name = 'cards';

-- name: MoveCardClock :execrows
UPDATE card_clock SET settled_to = @to_at WHERE name = 'cards' AND settled_to = @from_at;

-- name: AddCardUse :exec
INSERT INTO card_use (id, hour, tenant, key_id, endpoint_id, model, namespace, job_id, group_name, card_us)
VALUES (@id, @hour, @tenant, @key_id, @endpoint_id, @model, @namespace, @job_id, @group_name, @card_us)
ON CONFLICT (id) DO UPDATE SET card_us = card_use.card_us + excluded.card_us;

-- name: SumCards :many
SELECT CAST(CASE CAST(@by_what AS TEXT) WHEN 'key' THEN key_id WHEN 'endpoint' THEN endpoint_id WHEN 'tenant' THEN tenant ELSE model END AS TEXT) AS name,
       CAST(COALESCE(SUM(card_us), 0) AS BIGINT) AS card_us
FROM card_use
WHERE hour >= @from_hour AND hour < @to_hour AND (CAST(@any_tenant AS BOOLEAN) OR tenant = @tenant)
GROUP BY 1 ORDER BY 1;

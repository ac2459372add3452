-- name: GetRevision :one
SELECT value FROM revisions WHERE name = @name;

-- name: BumpRevision :one
UPDATE revisions SET value = value + 1 WHERE name = @name RETURNING value;

-- name: UpsertLimit :one
INSERT INTO limits (id, tenant, scope, subject, model, requests_minute, tokens_minute, concurrency, tokens_month, nanos_month, created_at, updated_at)
VALUES (@id, @tenant, @scope, @subject, @model, @requests_minute, @tokens_minute, @concurrency, @tokens_month, @nanos_month, @created_at, @created_at)
ON CONFLICT (tenant, scope, subject, model) DO UPDATE
SET requests_minute = excluded.requests_minute, tokens_minute = excluded.tokens_minute, concurrency = excluded.concurrency,
    tokens_month = excluded.tokens_month, nanos_month = excluded.nanos_month, updated_at = excluded.updated_at
RETURNING *;

-- name: GetLimit :one
SELECT * FROM limits WHERE id = @id;

-- name: ListLimits :many
SELECT limits.*, allowances.month, allowances.month_tokens, allowances.month_nanos
FROM limits LEFT JOIN allowances ON allowances.limit_id = limits.id
WHERE limits.created_at >= @after_created AND (limits.created_at > @after_created OR limits.id > @after_id)
ORDER BY limits.created_at, limits.id
LIMIT @max_rows;

-- name: ListLimitsOfTenant :many
SELECT limits.*, allowances.month, allowances.month_tokens, allowances.month_nanos
FROM limits LEFT JOIN allowances ON allowances.limit_id = limits.id
WHERE limits.tenant = @tenant AND limits.created_at >= @after_created AND (limits.created_at > @after_created OR limits.id > @after_id)
ORDER BY limits.created_at, limits.id
LIMIT @max_rows;

-- name: ListLimitsOfSubject :many
SELECT * FROM limits WHERE tenant = @tenant AND scope = @scope AND subject = @subject ORDER BY model LIMIT @max_rows;

-- name: DeleteLimit :execrows
DELETE FROM limits WHERE id = @id;

-- name: LockAllowance :one
INSERT INTO allowances (limit_id, month, month_tokens, month_nanos, state)
VALUES (@limit_id, 0, 0, 0, '')
ON CONFLICT (limit_id) DO UPDATE SET month = allowances.month
RETURNING *;

-- name: PutAllowance :exec
UPDATE allowances SET month = @month, month_tokens = @month_tokens, month_nanos = @month_nanos, state = @state
WHERE limit_id = @limit_id;

-- name: DeleteAllowance :exec
DELETE FROM allowances WHERE limit_id = @limit_id;

-- name: UpsertPrice :exec
INSERT INTO prices (model, prompt_nanos, cached_nanos, completion_nanos, request_nanos, updated_at)
VALUES (@model, @prompt_nanos, @cached_nanos, @completion_nanos, @request_nanos, @updated_at)
ON CONFLICT (model) DO UPDATE
SET prompt_nanos = excluded.prompt_nanos, cached_nanos = excluded.cached_nanos, completion_nanos = excluded.completion_nanos,
    request_nanos = excluded.request_nanos, updated_at = excluded.updated_at;

-- name: ListPrices :many
SELECT * FROM prices WHERE model > @after_model ORDER BY model LIMIT @max_rows;

-- name: DeletePrice :execrows
DELETE FROM prices WHERE model = @model;

-- name: InsertAudit :exec
INSERT INTO audit_events (id, at, tenant, actor, actor_key, action, object, detail)
VALUES (@id, @at, @tenant, @actor, @actor_key, @action, @object, @detail);

-- name: ListAudit :many
SELECT * FROM audit_events
WHERE at <= @before_at AND (at < @before_at OR id < @before_id)
ORDER BY at DESC, id DESC
LIMIT @max_rows;

-- name: ListAuditOfTenant :many
SELECT * FROM audit_events
WHERE tenant = @tenant AND at <= @before_at AND (at < @before_at OR id < @before_id)
ORDER BY at DESC, id DESC
LIMIT @max_rows;

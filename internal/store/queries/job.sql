-- name: InsertJob :execrows
INSERT INTO jobs (namespace, id, tenant, user_name, spec, spec_hash, injection, state, reason_code, reason,
                  priority, eval_id, created_at, updated_at, queued_at, version)
VALUES (@namespace, @id, @tenant, @user_name, @spec, @spec_hash, @injection, @state, @reason_code, @reason,
        @priority, @eval_id, @created_at, @updated_at, @queued_at, 1)
ON CONFLICT (namespace, id) DO NOTHING;

-- name: UpdateJob :execrows
UPDATE jobs SET
    tenant = @tenant, user_name = @user_name, spec = @spec, spec_hash = @spec_hash, injection = @injection,
    state = @state, reason_code = @reason_code, reason = @reason, priority = @priority, eval_id = @eval_id,
    created_at = @created_at, updated_at = @updated_at, queued_at = @queued_at, version = version + 1
WHERE namespace = @namespace AND id = @id AND version = @version;

-- name: GetJob :one
SELECT * FROM jobs WHERE namespace = @namespace AND id = @id;

-- name: GetJobByEval :one
SELECT * FROM jobs WHERE eval_id = @eval_id AND eval_id <> '';

-- name: GetJobTenant :one
SELECT tenant FROM jobs WHERE namespace = @namespace AND id = @id;

-- name: ListJobs :many
SELECT * FROM jobs
WHERE created_at >= @after_created
  AND (created_at > @after_created OR namespace > @after_namespace
       OR (namespace = @after_namespace AND id > @after_id))
  AND (CAST(@any_tenant AS BOOLEAN) OR tenant = @tenant)
  AND (CAST(@any_namespace AS BOOLEAN) OR namespace = @namespace)
  AND (CAST(@any_state AS BOOLEAN) OR state = @state)
  AND substr(id, 1, CAST(@prefix_length AS INTEGER)) = @prefix
ORDER BY created_at, namespace, id
LIMIT @max_rows;

-- name: ListWaitingJobs :many
SELECT * FROM jobs WHERE state = 'waiting'
ORDER BY priority DESC, queued_at, namespace, id
LIMIT @max_rows;

-- name: ListUnsentJobs :many
SELECT * FROM jobs WHERE state = 'submitting'
ORDER BY created_at, namespace, id
LIMIT @max_rows;

-- name: DeleteJob :execrows
DELETE FROM jobs WHERE namespace = @namespace AND id = @id;

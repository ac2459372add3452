-- name: InsertEviction :execrows
INSERT INTO evictions (id, namespace, job_id, tenant, state, reason, victims, deadline, created_at, updated_at, version)
VALUES (@id, @namespace, @job_id, @tenant, 'wanted', @reason, @victims, @deadline, @created_at, @updated_at, 1)
ON CONFLICT DO NOTHING;

-- name: UpdateEviction :execrows
UPDATE evictions SET state = @state, reason = @reason, victims = @victims, deadline = @deadline, updated_at = @updated_at, version = version + 1
WHERE id = @id AND version = @version AND evictions.state IN ('wanted', 'signalled', 'stopping');

-- name: ListOpenEvictions :many
SELECT * FROM evictions WHERE state IN ('wanted', 'signalled', 'stopping') ORDER BY created_at, id;

-- name: ListEvictionsSince :many
SELECT * FROM evictions WHERE updated_at >= @since ORDER BY updated_at DESC, id DESC LIMIT @max_rows;

-- name: DeleteClosedEvictions :execrows
DELETE FROM evictions WHERE updated_at < @before AND state NOT IN ('wanted', 'signalled', 'stopping');

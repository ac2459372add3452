-- name: InsertKey :execrows
INSERT INTO api_keys (id, kind, name, tenant, role, prefix, hash, endpoints, created_at, expires_at, last_used_at)
VALUES (@id, @kind, @name, @tenant, @role, @prefix, @hash, @endpoints, @created_at, @expires_at, @last_used_at)
ON CONFLICT DO NOTHING;

-- name: GetKeyByHash :one
SELECT * FROM api_keys WHERE hash = @hash;

-- name: ListKeys :many
SELECT * FROM api_keys
WHERE created_at >= @after_created AND (created_at > @after_created OR id > @after_id)
ORDER BY created_at, id
LIMIT @max_rows;

-- name: ListKeysOfTenant :many
SELECT * FROM api_keys
WHERE tenant = @tenant AND created_at >= @after_created AND (created_at > @after_created OR id > @after_id)
ORDER BY created_at, id
LIMIT @max_rows;

-- name: DeleteKey :execrows
DELETE FROM api_keys WHERE id = @id;

-- name: DeleteKeyOfTenant :execrows
DELETE FROM api_keys WHERE tenant = @tenant AND id = @id;

-- name: TouchKey :execrows
UPDATE api_keys SET last_used_at = @used_at
WHERE id = @id AND (last_used_at IS NULL OR last_used_at < @used_at);

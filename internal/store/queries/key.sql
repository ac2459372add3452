-- name: InsertKey :execrows
INSERT INTO api_keys (id, kind, name, tenant, member, role, prefix, hash, endpoints, created_at, expires_at, last_used_at, revision)
VALUES (@id, @kind, @name, @tenant, @member, @role, @prefix, @hash, @endpoints, @created_at, @expires_at, @last_used_at, @revision)
ON CONFLICT DO NOTHING;

-- name: GetKey :one
SELECT * FROM api_keys WHERE id = @id AND revoked_at IS NULL;

-- name: GetKeyByHash :one
SELECT * FROM api_keys WHERE (hash = @hash OR prior_hash = @hash) AND revoked_at IS NULL;

-- name: ListKeys :many
SELECT * FROM api_keys
WHERE revoked_at IS NULL AND created_at >= @after_created AND (created_at > @after_created OR id > @after_id)
ORDER BY created_at, id
LIMIT @max_rows;

-- name: ListKeysOfTenant :many
SELECT * FROM api_keys
WHERE revoked_at IS NULL AND tenant = @tenant AND created_at >= @after_created AND (created_at > @after_created OR id > @after_id)
ORDER BY created_at, id
LIMIT @max_rows;

-- name: ListKeyChanges :many
SELECT * FROM api_keys
WHERE revision >= @after_revision AND (revision > @after_revision OR id > @after_id)
ORDER BY revision, id
LIMIT @max_rows;

-- name: RotateKey :execrows
UPDATE api_keys SET prior_hash = hash, prior_until = @prior_until, hash = @hash, prefix = @prefix, revision = @revision
WHERE id = @id AND hash = @old_hash AND revoked_at IS NULL;

-- name: RetireKey :execrows
UPDATE api_keys SET prior_hash = NULL, prior_until = NULL, revision = @revision
WHERE id = @id AND prior_hash IS NOT NULL AND revoked_at IS NULL;

-- name: RevokeKey :execrows
UPDATE api_keys SET revoked_at = @revoked_at, revision = @revision
WHERE id = @id AND revoked_at IS NULL;

-- name: TouchKey :execrows
UPDATE api_keys SET last_used_at = @used_at
WHERE id = @id AND (last_used_at IS NULL OR last_used_at < @used_at);

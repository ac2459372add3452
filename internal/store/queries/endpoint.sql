-- name: InsertEndpoint :execrows
INSERT INTO endpoints (id, tenant, model, service, policy, created_at, version)
VALUES (@id, @tenant, @model, @service, @policy, @created_at, 1)
ON CONFLICT DO NOTHING;

-- name: GetEndpoint :one
SELECT * FROM endpoints WHERE id = @id;

-- name: GetEndpointByModel :one
SELECT * FROM endpoints WHERE model = @model;

-- name: ListEndpoints :many
SELECT * FROM endpoints
WHERE created_at >= @after_created AND (created_at > @after_created OR id > @after_id)
ORDER BY created_at, id
LIMIT @max_rows;

-- name: ListEndpointsOfTenant :many
SELECT * FROM endpoints
WHERE tenant = @tenant AND created_at >= @after_created AND (created_at > @after_created OR id > @after_id)
ORDER BY created_at, id
LIMIT @max_rows;

-- name: UpdateEndpoint :execrows
UPDATE endpoints SET model = @model, service = @service, policy = @policy, version = version + 1
WHERE id = @id AND tenant = @tenant AND version = @version;

-- name: DeleteEndpoint :execrows
DELETE FROM endpoints WHERE id = @id;

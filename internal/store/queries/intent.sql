-- name: InsertIntent :execrows
INSERT INTO intents (id, node_id, card_uuid, form, state, reason, claimed_by, version, created_at, updated_at)
VALUES (@id, @node_id, @card_uuid, @form, 'wanted', @reason, '', 1, @created_at, @updated_at)
ON CONFLICT DO NOTHING;

-- name: GetIntent :one
SELECT * FROM intents WHERE id = @id;

-- name: GetOpenIntent :one
SELECT * FROM intents WHERE card_uuid = @card_uuid AND state IN ('wanted', 'claimed');

-- name: ListOpenIntents :many
SELECT * FROM intents WHERE state IN ('wanted', 'claimed') ORDER BY created_at, id;

-- name: ListReportedIntents :many
SELECT * FROM intents WHERE updated_at >= @since AND state IN ('done', 'failed') ORDER BY updated_at DESC, id DESC LIMIT @max_rows;

-- name: ClaimIntent :execrows
UPDATE intents SET state = 'claimed', claimed_by = @claimed_by, updated_at = @updated_at, version = version + 1
WHERE id = @id AND version = @version AND state = 'wanted';

-- name: ReportIntent :execrows
UPDATE intents SET state = @state, reason = @reason, updated_at = @updated_at, version = version + 1
WHERE id = @id AND intents.state = 'claimed';

-- name: ExpireIntents :execrows
UPDATE intents SET state = 'expired', updated_at = @updated_at, version = version + 1
WHERE state IN ('wanted', 'claimed') AND intents.updated_at < @before;

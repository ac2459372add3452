-- name: InsertReservation :execrows
INSERT INTO reservations (id, tenant, namespace, job_id, state, created_at, expires_at, version)
VALUES (@id, @tenant, @namespace, @job_id, @state, @created_at, @expires_at, 1)
ON CONFLICT DO NOTHING;

-- name: GetReservation :one
SELECT * FROM reservations WHERE id = @id;

-- name: GetOpenReservation :one
SELECT * FROM reservations
WHERE namespace = @namespace AND job_id = @job_id AND state IN ('reserved', 'submitted', 'confirmed');

-- name: LockOpenReservation :one
-- An update that changes nothing: it takes the row's lock on PostgreSQL and needs no syntax that SQLite lacks.
UPDATE reservations SET version = version
WHERE namespace = @namespace AND job_id = @job_id AND state IN ('reserved', 'submitted', 'confirmed')
RETURNING *;

-- name: LockReservation :one
UPDATE reservations SET version = version WHERE id = @id RETURNING *;

-- name: SetReservationState :exec
UPDATE reservations SET state = @state, version = version + 1 WHERE id = @id;

-- name: SubmitReservation :execrows
UPDATE reservations SET state = 'submitted', version = version + 1 WHERE id = @id AND state = 'reserved';

-- name: ExtendReservation :execrows
UPDATE reservations SET expires_at = @expires_at, version = version + 1
WHERE id = @id AND state IN ('reserved', 'submitted');

-- name: ListExpiredReservations :many
SELECT id FROM reservations
WHERE state IN ('reserved', 'submitted') AND expires_at <= @moment
ORDER BY expires_at
LIMIT @max_rows;

-- name: ListReservations :many
SELECT * FROM reservations
WHERE created_at >= @after_created AND (created_at > @after_created OR id > @after_id)
ORDER BY created_at, id
LIMIT @max_rows;

-- name: ListReservationsOfTenant :many
SELECT * FROM reservations
WHERE tenant = @tenant AND created_at >= @after_created AND (created_at > @after_created OR id > @after_id)
ORDER BY created_at, id
LIMIT @max_rows;

-- name: ListOpenReservations :many
SELECT * FROM reservations
WHERE state IN ('reserved', 'submitted', 'confirmed')
  AND created_at >= @after_created AND (created_at > @after_created OR id > @after_id)
ORDER BY created_at, id
LIMIT @max_rows;

-- name: DeleteClosedReservations :execrows
DELETE FROM reservations WHERE state IN ('released', 'expired') AND created_at < @before;

-- name: ListClaims :many
SELECT * FROM claims WHERE reservation_id = @reservation_id ORDER BY seq;

-- name: InsertClaim :exec
INSERT INTO claims (reservation_id, seq, node_id, group_name, units, task_group, task, alloc_id)
VALUES (@reservation_id, @seq, @node_id, @group_name, @units, @task_group, @task, @alloc_id);

-- name: DeleteClaims :exec
DELETE FROM claims WHERE reservation_id = @reservation_id;

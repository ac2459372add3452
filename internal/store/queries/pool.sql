-- name: ListPools :many
SELECT * FROM pools WHERE present = TRUE ORDER BY node_id, group_name;

-- name: ListPoolsOfNode :many
SELECT * FROM pools WHERE node_id = @node_id ORDER BY group_name;

-- name: ListAllPools :many
SELECT * FROM pools ORDER BY node_id, group_name;

-- name: GetPool :one
SELECT * FROM pools WHERE node_id = @node_id AND group_name = @group_name;

-- name: UpsertPool :exec
INSERT INTO pools (node_id, group_name, capacity, unit_mib, taken, present)
VALUES (@node_id, @group_name, @capacity, @unit_mib, 0, TRUE)
ON CONFLICT (node_id, group_name) DO UPDATE
SET capacity = excluded.capacity, unit_mib = excluded.unit_mib, present = TRUE;

-- name: HidePool :exec
UPDATE pools SET capacity = 0, present = FALSE WHERE node_id = @node_id AND group_name = @group_name;

-- name: DeleteHiddenPool :exec
DELETE FROM pools WHERE node_id = @node_id AND group_name = @group_name AND present = FALSE AND taken = 0;

-- name: TakeIfRoom :execrows
UPDATE pools SET taken = taken + @units
WHERE node_id = @node_id AND group_name = @group_name AND present = TRUE AND taken + @units <= capacity;

-- name: AddTaken :exec
INSERT INTO pools (node_id, group_name, capacity, unit_mib, taken, present)
VALUES (@node_id, @group_name, 0, 0, @units, FALSE)
ON CONFLICT (node_id, group_name) DO UPDATE SET taken = pools.taken + excluded.taken;

-- name: SetTaken :exec
UPDATE pools SET taken = @taken WHERE node_id = @node_id AND group_name = @group_name;

-- name: SumClaimsOfPool :one
SELECT CAST(COALESCE(SUM(units), 0) AS BIGINT) AS units FROM claims
WHERE node_id = @node_id AND group_name = @group_name;

-- name: ListClaimedPools :many
SELECT DISTINCT node_id, group_name FROM claims ORDER BY node_id, group_name;

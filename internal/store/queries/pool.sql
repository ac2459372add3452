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

-- name: SumHolders :many
SELECT claims.node_id, claims.group_name, reservations.tenant, CAST(COALESCE(SUM(claims.units), 0) AS BIGINT) AS units
FROM claims JOIN reservations ON reservations.id = claims.reservation_id
GROUP BY claims.node_id, claims.group_name, reservations.tenant
ORDER BY claims.node_id, claims.group_name, reservations.tenant;

-- name: KeepAlone :execrows
-- Touches the pool when no tenant that is known but this one and those beside it has claims on it. An update, for it can be sent with others
-- before their answers are there. REPLACE finds a tenant between its marks as it is written, where LIKE knows wildcards.
UPDATE pools SET taken = taken
WHERE pools.node_id = @node_id AND pools.group_name = @group_name AND NOT EXISTS (
    SELECT 1 FROM claims JOIN reservations ON reservations.id = claims.reservation_id
    WHERE claims.node_id = @node_id AND claims.group_name = @group_name AND reservations.tenant NOT IN ('', CAST(@tenant AS TEXT))
      AND REPLACE(CAST(@beside AS TEXT), CAST(@mark AS TEXT) || reservations.tenant || CAST(@mark AS TEXT), '') = CAST(@beside AS TEXT)
);

-- name: UpsertGateway :exec
INSERT INTO gateways (id, beat, told_at, pins_to, loads) VALUES (@id, @beat, @told_at, @pins_to, @loads)
ON CONFLICT (id) DO UPDATE SET beat = excluded.beat, told_at = excluded.told_at, pins_to = excluded.pins_to, loads = excluded.loads;

-- name: InsertGatewayPins :exec
INSERT INTO gateway_pins (gateway, number, total, pins) VALUES (@gateway, @number, @total, @pins);

-- name: TrimGatewayPins :exec
DELETE FROM gateway_pins WHERE gateway = @gateway AND (number <= @number OR total <= @total);

-- name: ListGateways :many
SELECT * FROM gateways ORDER BY id LIMIT @max_rows;

-- name: ListGatewayPins :many
SELECT * FROM gateway_pins WHERE gateway = @gateway AND number > @after_number ORDER BY number LIMIT @max_rows;

-- name: DeleteGateway :execrows
DELETE FROM gateways WHERE id = @id AND beat = @beat;

-- name: DeletePinsOfGateway :exec
DELETE FROM gateway_pins WHERE gateway = @gateway;

-- name: DeleteSignalsOfGateway :exec
DELETE FROM service_signals WHERE gateway = @gateway;

-- name: UpsertSignal :exec
INSERT INTO service_signals (service, gateway, told_at, backends, in_flight, held, tokens_per_minute, first_token_us, engine_waiting, kv_permille)
VALUES (@service, @gateway, @told_at, @backends, @in_flight, @held, @tokens_per_minute, @first_token_us, @engine_waiting, @kv_permille)
ON CONFLICT (gateway, service) DO UPDATE SET told_at = excluded.told_at, backends = excluded.backends, in_flight = excluded.in_flight,
    held = excluded.held, tokens_per_minute = excluded.tokens_per_minute, first_token_us = excluded.first_token_us,
    engine_waiting = excluded.engine_waiting, kv_permille = excluded.kv_permille;

-- name: ListSignals :many
SELECT * FROM service_signals
WHERE gateway >= @after_gateway AND (gateway > @after_gateway OR service > @after_service)
ORDER BY gateway, service
LIMIT @max_rows;

-- name: DeleteOldSignals :exec
DELETE FROM service_signals WHERE told_at < @before;

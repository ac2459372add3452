-- What gateways tell one another, the loads of each and the sessions it has set, and what they tell whoever scales
-- services.

-- +goose Up
CREATE TABLE gateways (
    id       TEXT   NOT NULL PRIMARY KEY,
    beat     BIGINT NOT NULL,
    told_at  BIGINT NOT NULL,
    pins_to  BIGINT NOT NULL,
    loads    TEXT   NOT NULL
);

CREATE TABLE gateway_pins (
    gateway TEXT   NOT NULL,
    number  BIGINT NOT NULL,
    total   BIGINT NOT NULL,
    pins    TEXT   NOT NULL,
    PRIMARY KEY (gateway, number)
);

CREATE TABLE service_signals (
    gateway           TEXT   NOT NULL,
    service           TEXT   NOT NULL,
    told_at           BIGINT NOT NULL,
    backends          BIGINT NOT NULL,
    in_flight         BIGINT NOT NULL,
    held              BIGINT NOT NULL,
    tokens_per_minute BIGINT NOT NULL,
    first_token_us    BIGINT,
    engine_waiting    BIGINT,
    kv_permille       BIGINT,
    PRIMARY KEY (gateway, service)
);
CREATE INDEX service_signals_told ON service_signals (told_at);

-- +goose Down
DROP TABLE service_signals;
DROP TABLE gateway_pins;
DROP TABLE gateways;

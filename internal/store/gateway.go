package store

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/heteroflow/heteroflow/internal/store/sqlgen"
)

// GatewayHead is what a gateway tells of itself, again and again.
type GatewayHead struct {
	ID     string
	Beat   int64     // grows with every telling: one that stands still is gone, whatever clocks say
	ToldAt time.Time // by the gateway's own clock
	PinsTo int64     // number of its newest GatewayPins; 0 without any
	Loads  json.RawMessage
}

// GatewayPins are some of the sessions that a gateway has set.
type GatewayPins struct {
	Gateway string
	Number  int64 // grows with every row of the gateway
	Total   int64 // sessions that the gateway has told up to here
	Pins    json.RawMessage
}

// TellGateway stores a gateway's head and what sessions it has set since, and forgets its rows up to a number and a total.
// It may be on disk a moment later: what is lost with the machine is told again or is missed by nobody.
func (s *Store) TellGateway(ctx context.Context, head GatewayHead, pins []GatewayPins, upToNumber, upToTotal int64) error {
	if err := checkNames(head.ID); err != nil {
		return fmt.Errorf("tell of a gateway: %w", err)
	}
	err := s.inRelaxedTx(ctx, func(q *sqlgen.Queries) error {
		for _, p := range pins {
			err := q.InsertGatewayPins(ctx, sqlgen.InsertGatewayPinsParams{Gateway: head.ID, Number: p.Number, Total: p.Total, Pins: text(p.Pins)})
			if err != nil {
				return err
			}
		}
		if upToNumber > 0 || upToTotal > 0 {
			err := q.TrimGatewayPins(ctx, sqlgen.TrimGatewayPinsParams{Gateway: head.ID, Number: upToNumber, Total: upToTotal})
			if err != nil {
				return err
			}
		}
		return q.UpsertGateway(ctx, sqlgen.UpsertGatewayParams{
			ID: head.ID, Beat: head.Beat, ToldAt: micros(head.ToldAt), PinsTo: head.PinsTo, Loads: text(head.Loads),
		})
	})
	if err != nil {
		return fmt.Errorf("tell of gateway %s: %w", head.ID, err)
	}
	return nil
}

// Gateways lists the gateways that have told of themselves, ordered by id, gone ones too until somebody forgets them.
func (s *Store) Gateways(ctx context.Context) ([]GatewayHead, error) {
	rows, err := s.reader().ListGateways(ctx, MaxPageLimit)
	if err != nil {
		return nil, fmt.Errorf("list gateways: %w", err)
	}
	return mapRows(rows, func(r sqlgen.Gateway) (GatewayHead, error) {
		return GatewayHead{ID: r.ID, Beat: r.Beat, ToldAt: moment(r.ToldAt), PinsTo: r.PinsTo, Loads: raw(r.Loads)}, nil
	})
}

// GatewayPins lists what a gateway has told of sessions after the number, at most so many rows, oldest first.
func (s *Store) GatewayPins(ctx context.Context, gateway string, after int64, most int) ([]GatewayPins, error) {
	rows, err := s.reader().ListGatewayPins(ctx, sqlgen.ListGatewayPinsParams{Gateway: gateway, AfterNumber: after, MaxRows: int32(min(most, MaxPageLimit))})
	if err != nil {
		return nil, fmt.Errorf("list sessions of gateway %s: %w", gateway, err)
	}
	return mapRows(rows, func(r sqlgen.GatewayPin) (GatewayPins, error) {
		return GatewayPins{Gateway: r.Gateway, Number: r.Number, Total: r.Total, Pins: raw(r.Pins)}, nil
	})
}

// ForgetGateway drops all that a gateway has told, if its head is still the one at this beat.
func (s *Store) ForgetGateway(ctx context.Context, id string, beat int64) error {
	err := s.inTx(ctx, func(q *sqlgen.Queries) error {
		n, err := q.DeleteGateway(ctx, sqlgen.DeleteGatewayParams{ID: id, Beat: beat})
		if err != nil || n == 0 {
			return err
		}
		if err := q.DeletePinsOfGateway(ctx, id); err != nil {
			return err
		}
		return q.DeleteSignalsOfGateway(ctx, id)
	})
	if err != nil {
		return fmt.Errorf("forget gateway %s: %w", id, err)
	}
	return nil
}

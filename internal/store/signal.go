package store

import (
	"context"
	"fmt"
	"time"

	"github.com/heteroflow/heteroflow/internal/store/sqlgen"
)

// Signal is how busy a service is as one gateway has it: what a decision on its number of instances needs. Requests are
// counted while they run, so that long answers do not look idle. The service's whole is the sum over the gateways of
// InFlight, Held and TokensPerMinute; the others are the same for all, but for when they were looked at.
type Signal struct {
	Service         string
	Gateway         string
	ToldAt          time.Time // by the gateway's clock
	Backends        int       // that the registry lists
	InFlight        int
	Held            int            // requests that wait at the gateway for a backend or a place at one
	TokensPerMinute int64          // of prompts and answers together, since the last signal
	FirstToken      *time.Duration // mean since the last signal; nil when no answer began
	EngineWaiting   *int           // requests that engines have in their own queues; nil when none tells
	KVPermille      *int           // of the fullest engine's cache, 0 to 1000; nil when none tells
}

// signalTime is how long a signal is kept that nobody tells any more: long, as gateways' clocks may differ.
const signalTime = time.Hour

// TellSignals stores a gateway's signals over those before, and drops those that are old.
func (s *Store) TellSignals(ctx context.Context, signals []Signal) error {
	for _, one := range signals {
		if err := checkNames(one.Service, one.Gateway); err != nil {
			return fmt.Errorf("tell signals: %w", err)
		}
	}
	if len(signals) == 0 {
		return nil
	}
	err := s.inRelaxedTx(ctx, func(q *sqlgen.Queries) error {
		if err := q.DeleteOldSignals(ctx, micros(signals[0].ToldAt.Add(-signalTime))); err != nil {
			return err
		}
		for _, one := range signals {
			p := sqlgen.UpsertSignalParams{
				Service: one.Service, Gateway: one.Gateway, ToldAt: micros(one.ToldAt), Backends: int64(one.Backends), InFlight: int64(one.InFlight),
				Held: int64(one.Held), TokensPerMinute: one.TokensPerMinute, EngineWaiting: nullInt(wide(one.EngineWaiting)), KvPermille: nullInt(wide(one.KVPermille)),
			}
			if one.FirstToken != nil {
				p.FirstTokenUs = nullInt(new(one.FirstToken.Microseconds()))
			}
			if err := q.UpsertSignal(ctx, p); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("tell signals: %w", err)
	}
	return nil
}

func wide(v *int) *int64 {
	if v == nil {
		return nil
	}
	return new(int64(*v))
}

// ListSignals lists the latest signals of every gateway and service, ordered by both.
func (s *Store) ListSignals(ctx context.Context, page Page) (out []Signal, next string, err error) {
	_, after, err := page.position(2)
	if err != nil {
		return nil, "", fmt.Errorf("list signals: %w", err)
	}
	limit := page.limit()
	rows, err := s.reader().ListSignals(ctx, sqlgen.ListSignalsParams{AfterGateway: after[0], AfterService: after[1], MaxRows: limit + 1})
	if err != nil {
		return nil, "", fmt.Errorf("list signals: %w", err)
	}
	rows, next = cut(rows, limit, func(r sqlgen.ServiceSignal) string { return cursor(0, r.Gateway, r.Service) })
	out, err = mapRows(rows, signalOf)
	return out, next, err
}

func signalOf(r sqlgen.ServiceSignal) (Signal, error) {
	one := Signal{
		Service: r.Service, Gateway: r.Gateway, ToldAt: moment(r.ToldAt), Backends: int(r.Backends), InFlight: int(r.InFlight), Held: int(r.Held),
		TokensPerMinute: r.TokensPerMinute,
	}
	if r.FirstTokenUs.Valid {
		one.FirstToken = new(time.Duration(r.FirstTokenUs.Int64) * time.Microsecond)
	}
	if r.EngineWaiting.Valid {
		one.EngineWaiting = new(int(r.EngineWaiting.Int64))
	}
	if r.KvPermille.Valid {
		one.KVPermille = new(int(r.KvPermille.Int64))
	}
	return one, nil
}

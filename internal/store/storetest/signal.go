//go:build unix

package storetest

import (
	"testing"
	"time"

	"github.com/heteroflow/heteroflow/internal/store"
)

// testSignals; what gateways tell one another is under the suite of gateway/peers.
func testSignals(t *testing.T, open Open) {
	s := open(t)
	ctx := t.Context()
	full := store.Signal{
		Service: "llm", Gateway: "g1", ToldAt: epoch, Backends: 2, InFlight: 7, Held: 3, TokensPerMinute: 1 << 40,
		FirstToken: new(250 * time.Millisecond), EngineWaiting: new(0), KVPermille: new(1000),
	}
	bare := store.Signal{Service: "llm", Gateway: "g2", ToldAt: epoch}
	other := store.Signal{Service: "embed", Gateway: "g1", ToldAt: epoch}
	ok(t, s.TellSignals(ctx, []store.Signal{full, bare, other}))
	ok(t, s.TellSignals(ctx, nil))
	list := func() []store.Signal {
		t.Helper()
		return allPages(t, func(p store.Page) ([]store.Signal, string, error) { return s.ListSignals(ctx, p) })
	}
	same(t, []store.Signal{other, full, bare}, list())
	full.InFlight, full.EngineWaiting = 0, nil // what is not told any more is not known any more
	full.ToldAt = epoch.Add(10 * time.Second)
	ok(t, s.TellSignals(ctx, []store.Signal{full}))
	same(t, []store.Signal{other, full, bare}, list())

	// A gateway that tells nothing for an hour is forgotten.
	later := bare
	later.Gateway, later.ToldAt = "g3", epoch.Add(time.Hour+time.Second)
	ok(t, s.TellSignals(ctx, []store.Signal{later}))
	same(t, []store.Signal{full, later}, list())
	ok(t, s.TellSignals(ctx, []store.Signal{bare, other}))

	// The signals of a gateway that is gone go with it.
	ok(t, s.TellGateway(ctx, store.GatewayHead{ID: "g1", Beat: 4, ToldAt: epoch}, nil, 0, 0))
	ok(t, s.ForgetGateway(ctx, "g1", 4))
	same(t, []store.Signal{bare, later}, list())
	wantErr(t, s.TellSignals(ctx, []store.Signal{{Service: "a\x00"}}), store.ErrInvalid)
	wantErr(t, s.TellGateway(ctx, store.GatewayHead{ID: "a\x00"}, nil, 0, 0), store.ErrInvalid)
}

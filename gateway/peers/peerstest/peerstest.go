// Package peerstest holds what every ledger that gateways exchange through must pass, and one in memory for tests. What
// gateways write there does not belong here.
package peerstest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/gateway/peers"
	"github.com/heteroflow/heteroflow/internal/store"
)

// Memory is a ledger in memory that can be away.
type Memory struct {
	mu    sync.Mutex
	heads map[string]store.GatewayHead
	pins  map[string][]store.GatewayPins
	away  bool
	bytes int
}

var _ peers.Ledger = (*Memory)(nil)

// ErrAway is what a ledger says that is away.
var ErrAway = errors.New("the ledger is away")

// NewMemory makes an empty ledger.
func NewMemory() *Memory {
	return &Memory{heads: map[string]store.GatewayHead{}, pins: map[string][]store.GatewayPins{}}
}

// Away makes all calls fail, or not any more.
func (m *Memory) Away(away bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.away = away
}

// Bytes is how much was written of sessions.
func (m *Memory) Bytes() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.bytes
}

func (m *Memory) lock() (func(), error) {
	m.mu.Lock()
	if m.away {
		m.mu.Unlock()
		return nil, ErrAway
	}
	return m.mu.Unlock, nil
}

// TellGateway is the store's.
func (m *Memory) TellGateway(_ context.Context, head store.GatewayHead, pins []store.GatewayPins, upToNumber, upToTotal int64) error {
	unlock, err := m.lock()
	if err != nil {
		return err
	}
	defer unlock()
	m.heads[head.ID] = head
	for _, p := range pins {
		p.Gateway = head.ID
		m.pins[head.ID] = append(m.pins[head.ID], p)
		m.bytes += len(p.Pins)
	}
	if upToNumber > 0 || upToTotal > 0 {
		m.pins[head.ID] = slices.DeleteFunc(m.pins[head.ID], func(p store.GatewayPins) bool { return p.Number <= upToNumber || p.Total <= upToTotal })
	}
	return nil
}

// Gateways is the store's.
func (m *Memory) Gateways(context.Context) ([]store.GatewayHead, error) {
	unlock, err := m.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	var list []store.GatewayHead
	for _, h := range m.heads {
		list = append(list, h)
	}
	slices.SortFunc(list, func(a, b store.GatewayHead) int { return cmp.Compare(a.ID, b.ID) })
	return list, nil
}

// GatewayPins is the store's.
func (m *Memory) GatewayPins(_ context.Context, gateway string, after int64, most int) ([]store.GatewayPins, error) {
	unlock, err := m.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	rows := m.pins[gateway]
	from, _ := slices.BinarySearchFunc(rows, after+1, func(p store.GatewayPins, number int64) int { return cmp.Compare(p.Number, number) })
	return slices.Clone(rows[from:min(len(rows), from+most)]), nil
}

// ForgetGateway is the store's.
func (m *Memory) ForgetGateway(_ context.Context, id string, beat int64) error {
	unlock, err := m.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if m.heads[id].Beat == beat {
		delete(m.heads, id)
		delete(m.pins, id)
	}
	return nil
}

// Run is the suite. open gives an empty ledger.
func Run(t *testing.T, open func(t *testing.T) peers.Ledger) {
	t.Helper()
	l, ctx := open(t), t.Context()
	told := time.Date(2026, 1, 1, 0, 0, 0, 1000, time.UTC)
	rows := func(from, to int64) (list []store.GatewayPins) {
		for n := from; n <= to; n++ {
			list = append(list, store.GatewayPins{Number: n, Total: 10 * n, Pins: json.RawMessage(fmt.Sprintf(`{"n":%d}`, n))})
		}
		return list
	}
	numbers := func(gateway string, after int64, most int) (list []int64) {
		t.Helper()
		got, err := l.GatewayPins(ctx, gateway, after, most)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range got {
			if p.Gateway != gateway || p.Total != 10*p.Number || string(p.Pins) != fmt.Sprintf(`{"n":%d}`, p.Number) {
				t.Errorf("read %+v", p)
			}
			list = append(list, p.Number)
		}
		return list
	}
	same := func(want, got any) {
		t.Helper()
		if diff := gocmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	a := store.GatewayHead{ID: "a", Beat: 1, ToldAt: told, PinsTo: 5, Loads: json.RawMessage(`{}`)}
	b := store.GatewayHead{ID: "b", Beat: 7, ToldAt: told, Loads: json.RawMessage(`{"llm":{}}`)}
	must(l.TellGateway(ctx, b, nil, 0, 0))
	must(l.TellGateway(ctx, a, rows(1, 5), 0, 0))
	same([]int64{1, 2, 3, 4, 5}, numbers("a", 0, 9))
	same([]int64{3, 4}, numbers("a", 2, 2))
	same([]int64(nil), numbers("b", 0, 9))
	a.Beat, a.PinsTo = 2, 6
	must(l.TellGateway(ctx, a, rows(6, 6), 2, 0))
	same([]int64{3, 4, 5, 6}, numbers("a", 0, 9))
	must(l.TellGateway(ctx, a, nil, 0, 40))
	same([]int64{5, 6}, numbers("a", 0, 9))
	heads, err := l.Gateways(ctx)
	must(err)
	same([]store.GatewayHead{a, b}, heads)
	must(l.ForgetGateway(ctx, "a", 1)) // it has told more since
	same([]int64{5, 6}, numbers("a", 0, 9))
	must(l.ForgetGateway(ctx, "a", 2))
	same([]int64(nil), numbers("a", 0, 9))
	heads, err = l.Gateways(ctx)
	must(err)
	same([]store.GatewayHead{b}, heads)
}

package peers

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/heteroflow/heteroflow/gateway/balance"
	"github.com/heteroflow/heteroflow/gateway/session"
	"github.com/heteroflow/heteroflow/internal/store"
)

// What is written of sessions is bounded by the row: {"llm":{"b":["id of a backend"],"p":[[key,backend,at,tokens]]}}, where
// backend counts into b, and at is in nanoseconds since 1970 by the clock of whoever set the session.
type pinList struct {
	Backends []string   `json:"b"`
	Pins     [][4]int64 `json:"p"`
}

const (
	maxPins     = 1024 // in one row, some 60 kB
	maxRowBytes = 1 << 20
	// latestAt is in the year 2201: a clock beyond it would leave no time for what is set after.
	latestAt = 7_300_000_000_000_000_000
)

// row is what is written at once.
type row struct {
	store.GatewayPins
	lists map[string]*pinList
	index map[string]map[string]int64 // service → backend → its place
	count int
}

// writer collects pins into rows.
type writer struct{ list []*row }

func newWriter() *writer { return &writer{} }

func (w *writer) add(service string, pins []session.Pin) {
	for _, p := range pins {
		if len(w.list) == 0 || w.list[len(w.list)-1].count == maxPins {
			w.list = append(w.list, &row{lists: map[string]*pinList{}, index: map[string]map[string]int64{}})
		}
		w.list[len(w.list)-1].add(service, p)
	}
}

func (r *row) add(service string, p session.Pin) {
	l := r.lists[service]
	if l == nil {
		l = &pinList{}
		r.lists[service], r.index[service] = l, map[string]int64{}
	}
	at, ok := r.index[service][p.Backend]
	if !ok {
		at = int64(len(l.Backends))
		r.index[service][p.Backend] = at
		l.Backends = append(l.Backends, p.Backend)
	}
	l.Pins = append(l.Pins, [4]int64{int64(p.Key), at, p.At.UnixNano(), int64(p.Tokens)})
	r.count++
}

// rows gives what is to be written.
func (w *writer) rows() []*row {
	for _, r := range w.list {
		r.Pins = encode(r.lists)
	}
	return w.list
}

func stored(rows []*row) []store.GatewayPins {
	out := make([]store.GatewayPins, 0, len(rows))
	for _, r := range rows {
		out = append(out, r.GatewayPins)
	}
	return out
}

func encode(v any) json.RawMessage {
	raw, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("peers: encode: %v", err)) // maps of texts and numbers
	}
	return raw
}

// decodePins reads a row by service. Another version of this program may have written it, so nothing in it is believed.
func decodePins(raw []byte) (map[string][]session.Pin, error) {
	if len(raw) > maxRowBytes {
		return nil, fmt.Errorf("a row of %d bytes, with at most %d allowed", len(raw), maxRowBytes)
	}
	var lists map[string]pinList
	if err := json.Unmarshal(raw, &lists); err != nil {
		return nil, fmt.Errorf("read sessions: %w", err)
	}
	out := make(map[string][]session.Pin, len(lists))
	for service, l := range lists {
		pins := make([]session.Pin, 0, len(l.Pins))
		for _, p := range l.Pins {
			if p[0] == 0 || p[1] < 0 || p[1] >= int64(len(l.Backends)) || p[2] < 0 || p[2] > latestAt || p[3] < 0 {
				return nil, fmt.Errorf("read sessions of %s: %v is none", service, p)
			}
			pins = append(pins, session.Pin{Key: session.Key(p[0]), Backend: l.Backends[p[1]], At: time.Unix(0, p[2]).UTC(), Tokens: int(p[3])})
		}
		out[service] = pins
	}
	return out, nil
}

// encodeLoads writes {"llm":{"id of a backend":[requests,tokens]}}.
func encodeLoads(loads map[string]map[string]balance.Load) json.RawMessage {
	out := make(map[string]map[string][2]int, len(loads))
	for service, list := range loads {
		out[service] = make(map[string][2]int, len(list))
		for id, l := range list {
			out[service][id] = [2]int{l.Requests, l.Tokens}
		}
	}
	return encode(out)
}

func decodeLoads(raw []byte) (map[string]map[string]balance.Load, error) {
	if len(raw) == 0 {
		return nil, nil
	}
	var in map[string]map[string][2]int
	if err := json.Unmarshal(raw, &in); err != nil {
		return nil, fmt.Errorf("read loads: %w", err)
	}
	out := make(map[string]map[string]balance.Load, len(in))
	for service, list := range in {
		out[service] = make(map[string]balance.Load, len(list))
		for id, l := range list {
			if l[0] < 0 || l[1] < 0 {
				return nil, fmt.Errorf("read loads of %s: %v at %s is none", service, l, id)
			}
			out[service][id] = balance.Load{Requests: l[0], Tokens: l[1]}
		}
	}
	return out, nil
}

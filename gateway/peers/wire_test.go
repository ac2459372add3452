package peers

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/heteroflow/heteroflow/gateway/session"
)

func TestWire_WhatIsWrittenIsRead(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w, want := newWriter(), map[string][]session.Pin{}
		for range rapid.IntRange(0, 3000).Draw(t, "pins") {
			service := rapid.SampledFrom([]string{"llm", "大模型", ""}).Draw(t, "service")
			p := session.Pin{
				Key: session.Key(rapid.Uint64Range(1, 1<<64-1).Draw(t, "key")), Backend: fmt.Sprint("b", rapid.IntRange(0, 9).Draw(t, "backend")),
				At: time.Unix(0, rapid.Int64Range(0, latestAt).Draw(t, "at")).UTC(), Tokens: rapid.IntRange(0, 1<<40).Draw(t, "tokens"),
			}
			want[service] = append(want[service], p)
			w.add(service, []session.Pin{p})
		}
		got := map[string][]session.Pin{}
		for _, r := range w.rows() {
			if r.count > maxPins || len(r.Pins) > maxRowBytes {
				t.Fatalf("a row of %d pins and %d bytes", r.count, len(r.Pins))
			}
			pins, err := decodePins(r.Pins)
			if err != nil {
				t.Fatal(err)
			}
			for service, list := range pins {
				got[service] = append(got[service], list...)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("(-want +got)\n%s", diff)
		}
	})
}

func FuzzDecodePins(f *testing.F) {
	f.Add([]byte(`{"llm":{"b":["a"],"p":[[1,0,1767225600000000000,500]]}}`))
	f.Add([]byte(`{"llm":{"b":[],"p":[[1,0,0,0]]}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		pins, err := decodePins(raw)
		if err != nil {
			return
		}
		table := session.NewTable(1000, time.Hour)
		for _, list := range pins {
			table.Merge(list, 0, time.Unix(1767225600, 0))
		}
	})
}

func FuzzDecodeLoads(f *testing.F) {
	f.Add([]byte(`{"llm":{"a":[3,4000]}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		loads, err := decodeLoads(raw)
		if err != nil {
			return
		}
		again, err := decodeLoads(encodeLoads(loads))
		if err != nil {
			t.Fatal(err)
		}
		for service, list := range loads {
			for id, l := range list {
				if again[service][id] != l {
					t.Fatalf("%v became %v", l, again[service][id])
				}
			}
		}
	})
}

package device

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/device-plugins/topology"
	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/devicepb"
)

// wild is a detector whose every call does the same harm.
type wild struct {
	harm  func()
	cards []accel.Card // listed after the harm, where it returns
	once  sync.Once
	asked chan struct{} // closed at the first call
}

var (
	_ Sampler       = (*wild)(nil)
	_ ProcessLister = (*wild)(nil)
	_ Linker        = (*wild)(nil)
	_ EventTeller   = (*wild)(nil)
)

func (w *wild) do() {
	w.once.Do(func() { close(w.asked) })
	w.harm()
}

func (w *wild) Name() string         { return "wild" }
func (w *wild) Vendor() accel.Vendor { return accel.AMD }

func (w *wild) Detect(context.Context) ([]accel.Card, error) {
	w.do()
	return w.cards, nil
}

func (w *wild) Sample(context.Context, []accel.Card) (map[string]Sample, error) {
	w.do()
	return nil, nil
}

func (w *wild) Processes(context.Context, []accel.Card) (map[string][]int, error) {
	w.do()
	return nil, nil
}

func (w *wild) Links(context.Context, []accel.Card) (topology.Graph, error) {
	w.do()
	return topology.Graph{}, nil
}

func (w *wild) Events() []Event {
	w.do()
	return []Event{{Card: "no such card", Blame: BlameCard}, {}}
}

// tame lists cards; all else that it does is wild.
type tame struct{ *wild }

func (t tame) Detect(context.Context) ([]accel.Card, error) { return t.cards, nil }

// Whatever a detector does, the stream goes on, the cards of the others are offered and what befalls them is told.
func TestFingerprint_NeverEndsWhateverADetectorDoes(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	amd := good("GPU-w", "0000:09:00.0")
	amd.Vendor = accel.AMD
	for name, d := range map[string]Detector{
		"panics":                    &wild{harm: func() { panic("broken") }},
		"panics with an error":      &wild{harm: func() { panic(errors.New("broken")) }},
		"reads past the end":        &wild{harm: func() { _ = []int{}[len(t.Name())] }},
		"ends its goroutine":        &wild{harm: runtime.Goexit},
		"never returns":             &wild{harm: func() { <-release }},
		"lists nothing of a card":   &wild{harm: func() {}, cards: make([]accel.Card, 3)},
		"lists a card twice":        &wild{harm: func() {}, cards: []accel.Card{amd, amd}},
		"lists the cards of others": &wild{harm: func() {}, cards: []accel.Card{good("GPU-a", "")}},
		"lists bytes without sense": &wild{harm: func() {}, cards: []accel.Card{{Vendor: accel.AMD, Model: "\xff\x00/", UUID: "\xff", Health: accel.Health{Reason: "\xfe"}}}},
		"panics but for its cards":  tame{&wild{harm: func() { panic("broken") }, cards: []accel.Card{amd}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var w *wild
			switch d := d.(type) {
			case *wild:
				w = d
			case tame:
				w = d.wild
			}
			w.asked = make(chan struct{})
			other := &bench{name: "fine", cards: []accel.Card{good("GPU-a", ""), good("GPU-b", "")}}
			p := New(func(Config) ([]Detector, error) { return []Detector{d, other}, nil }, hclog.NewNullLogger())
			p.limit = 100 * time.Millisecond
			cfg := DefaultConfig()
			cfg.BadSamples, cfg.RecoveryHold, cfg.StateDir = 1, "0s", t.TempDir()
			cfg.UnhealthyOn, cfg.TextfileDir = []string{"ecc"}, t.TempDir()
			if err := p.Use(cfg); err != nil {
				t.Fatal(err)
			}
			p.set.period = 5 * time.Millisecond
			messages := fingerprint(t, p)
			await := func(want string) {
				t.Helper()
				for !slices.ContainsFunc(lines(receive(t, messages)), func(line string) bool { return strings.Contains(line, want) }) {
					continue
				}
			}
			await("GPU-b")
			<-w.asked
			for range 3 {
				other.set(func(b *bench) { b.cards[1] = bad(b.cards[1], "lost") })
				await("GPU-b(lost)")
				other.set(func(b *bench) { b.cards[1] = good("GPU-b", "") })
				await("GPU-b]")
			}
			if _, err := p.Reserve(t.Context(), []string{"GPU-b"}); err != nil {
				t.Errorf("reserve a card of another: %v", err)
			}
			enough := errors.New("enough")
			if err := p.Stats(t.Context(), time.Second, func([]*devicepb.DeviceGroupStats) error { return enough }); !errors.Is(err, enough) {
				t.Errorf("statistics ended with %v", err)
			}
		})
	}
}

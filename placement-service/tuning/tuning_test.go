package tuning

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/store"
	"github.com/heteroflow/heteroflow/placement-service/engine"
)

var epoch = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)

// kept is a store of settings in memory.
type kept struct {
	mu    sync.Mutex
	text  map[string]string
	reads int
}

func newKept() *kept { return &kept{text: map[string]string{}} }

func (k *kept) Setting(_ context.Context, name string) (string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.reads++
	text, ok := k.text[name]
	if !ok {
		return "", store.ErrNotFound
	}
	return text, nil
}

func (k *kept) SetSettingOnce(_ context.Context, name, value string) (string, bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if text, ok := k.text[name]; ok {
		return text, false, nil
	}
	k.text[name] = value
	return value, true, nil
}

func tuned(s Settings) *Tuning { return New(s, clock.NewFake(epoch), hclog.NewNullLogger()) }

func weight(v Version, name string) float64 {
	for _, p := range v.Plugins {
		if p.Name == name {
			return p.Weight
		}
	}
	return -1
}

func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func TestTuning_VersionsAreKeptAndCanBeGoneBackTo(t *testing.T) {
	t.Parallel()
	k := newKept()
	a, b := tuned(k), tuned(k)
	ctx := t.Context()
	must(a.Update(ctx, "ann", "binpack", nil, new(3.0), nil))(t)
	must(b.Update(ctx, "bob", "spread", new(true), nil, nil))(t)
	must(a.Update(ctx, "ann", "binpack", nil, new(7.0), nil))(t)
	v := a.Current()
	if v.Number != 3 || v.By != "ann" || !v.At.Equal(epoch) || weight(v, "binpack") != 7 || v.Of != nil {
		t.Errorf("version in force: %+v", v)
	}
	if old := must(a.Version(ctx, 2))(t); old.By != "bob" || weight(old, "binpack") != 3 {
		t.Errorf("version 2: %+v", old)
	}
	back := must(b.Restore(ctx, "bob", 1))(t)
	if back.Number != 4 || back.Of == nil || *back.Of != 1 || weight(back, "binpack") != 3 || back.By != "bob" {
		t.Errorf("version after going back: %+v", back)
	}
	if back = must(b.Restore(ctx, "bob", 0))(t); weight(back, "binpack") != weight(Version{Plugins: engine.DefaultPlugins()}, "binpack") || *back.Of != 0 {
		t.Errorf("version after going back to the defaults: %+v", back)
	}
	if err := a.Refresh(ctx); err != nil || a.Current().Number != 5 {
		t.Errorf("the other instance has version %d, %v", a.Current().Number, err)
	}
	for _, number := range []int{6, -1} {
		if _, err := a.Restore(ctx, "ann", number); !errors.Is(err, ErrNoVersion) {
			t.Errorf("version %d: %v", number, err)
		}
	}
	if _, err := a.Update(ctx, "ann", "nothing", new(true), nil, nil); !errors.Is(err, ErrUnknown) {
		t.Errorf("unknown plugin: %v", err)
	}
	if _, err := a.Update(ctx, "ann", "spread", nil, nil, func(*engine.Limits) {}); !errors.Is(err, ErrNoLimits) {
		t.Errorf("limits of a plugin without: %v", err)
	}
	if a.Current().Number != 5 {
		t.Error("what was refused made a version")
	}
	load := must(a.Update(ctx, "ann", engine.LoadPlugin, new(true), nil, func(l *engine.Limits) { l.CardCelsius = 70 }))(t)
	if want := engine.DefaultLimits(); load.Limits.CardCelsius != 70 || load.Limits.NodeComputePct != want.NodeComputePct || !a.Engine().LimitsLoad() {
		t.Errorf("limits are %+v", load.Limits)
	}
	if old := must(a.Version(ctx, 1))(t); weight(old, engine.LoadPlugin) != 0 || old.Plugins[slices.IndexFunc(old.Plugins, func(p engine.PluginSetting) bool { return p.Name == engine.LoadPlugin })].Limits != engine.DefaultLimits() {
		t.Errorf("an earlier version has %+v", old.Plugins)
	}
}

// Whoever changes something at the same time as another loses nothing, in whichever instance.
func TestTuning_ChangesAtOnceAreAllKept(t *testing.T) {
	t.Parallel()
	k := newKept()
	names := []string{"binpack", "spread", "gpu_filter", "resource_filter"}
	var all sync.WaitGroup
	for i, name := range names {
		all.Go(func() {
			own := tuned(k)
			for n := range 25 {
				if _, err := own.Update(t.Context(), fmt.Sprint("user", i), name, nil, new(float64(n)), nil); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	late := tuned(k)
	k.reads = 0
	if err := late.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	v := late.Current()
	if v.Number != 100 || k.reads > 40 {
		t.Errorf("version %d after 100 changes, read %d times", v.Number, k.reads)
	}
	for _, name := range names {
		if weight(v, name) != 24 {
			t.Errorf("weight of %s is %v, want 24", name, weight(v, name))
		}
	}
}

func TestTuning_KeepsWhatItHasWhenAVersionCannotBeRead(t *testing.T) {
	t.Parallel()
	k := newKept()
	a := tuned(k)
	must(a.Update(t.Context(), "ann", "binpack", nil, new(3.0), nil))(t)
	k.text[nameOf(2)] = "{"
	if err := a.Refresh(t.Context()); err == nil {
		t.Error("no error")
	}
	if v := a.Current(); v.Number != 1 || weight(v, "binpack") != 3 {
		t.Errorf("version in force: %+v", v)
	}
}

func TestTuning_TellsWhatPluginsTake(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	registry.MustRegister(tuned(newKept()))
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		var plugins []string
		for _, m := range f.GetMetric() {
			plugins = append(plugins, m.GetLabel()[0].GetValue())
		}
		if want := []string{"gpu_filter", "nvlink", "potential", "rdma", "resource_filter", "share_tenant", "topology"}; !slices.Equal(plugins, want) {
			t.Errorf("%s of %v, want of %v", f.GetName(), plugins, want)
		}
	}
	if len(families) != 2 {
		t.Errorf("%d metrics, want calls and seconds", len(families))
	}
}

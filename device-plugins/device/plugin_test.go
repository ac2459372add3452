package device

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/grant"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/devicepb"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/structspb"
)

// bench is a detector that a test sets.
type bench struct {
	name string

	mu        sync.Mutex
	cards     []accel.Card
	err       error
	hang      chan struct{} // when set, Detect does not return before it is closed, whatever its context says
	processes map[string][]int
	samples   map[string]Sample
	calls     int
}

func (b *bench) Name() string         { return b.name }
func (b *bench) Vendor() accel.Vendor { return accel.NVIDIA }

func (b *bench) Detect(context.Context) ([]accel.Card, error) {
	b.mu.Lock()
	b.calls++
	hang := b.hang
	b.mu.Unlock()
	if hang != nil {
		<-hang
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.cards), b.err
}

func (b *bench) Sample(context.Context, []accel.Card) (map[string]Sample, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.samples, b.err
}

func (b *bench) Processes(_ context.Context, cards []accel.Card) (map[string][]int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := map[string][]int{}
	for _, c := range cards {
		out[c.UUID] = b.processes[c.UUID]
	}
	return out, b.err
}

func (b *bench) set(change func(*bench)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change(b)
}

func start(t *testing.T, change func(*Config), benches ...*bench) *Plugin {
	t.Helper()
	p := New(func(Config) ([]Detector, error) {
		var out []Detector
		for _, b := range benches {
			out = append(out, b)
		}
		return out, nil
	}, hclog.NewNullLogger())
	p.limit, p.retry = 300*time.Millisecond, 5*time.Millisecond
	cfg := DefaultConfig()
	cfg.BadSamples, cfg.RecoveryHold, cfg.StateDir = 2, "0s", t.TempDir()
	if change != nil {
		change(&cfg)
	}
	if err := p.Use(cfg); err != nil {
		t.Fatal(err)
	}
	p.set.period = 5 * time.Millisecond // less than a config may ask for
	return p
}

// fingerprint runs the stream until the test ends and hands every message over.
func fingerprint(t *testing.T, p *Plugin) <-chan []*devicepb.DeviceGroup {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	messages, ended := make(chan []*devicepb.DeviceGroup, 100), make(chan error, 1)
	go func() {
		ended <- p.Fingerprint(ctx, func(g []*devicepb.DeviceGroup) error { messages <- g; return nil })
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("stream ended with %v", err)
		}
	})
	return messages
}

func receive(t *testing.T, messages <-chan []*devicepb.DeviceGroup) []*devicepb.DeviceGroup {
	t.Helper()
	select {
	case g := <-messages:
		return g
	case <-time.After(20 * time.Second):
		t.Fatal("no fingerprint came")
		return nil
	}
}

// lines shows groups as a person would read them.
func lines(groups []*devicepb.DeviceGroup) []string {
	var out []string
	for _, g := range groups {
		var ids []string
		for _, d := range g.Devices {
			id := d.ID
			if !d.Healthy {
				id += "(" + d.HealthDescription + ")"
			}
			ids = append(ids, id)
		}
		if len(ids) > 3 {
			ids = []string{ids[0], fmt.Sprintf("… %d", len(ids))}
		}
		out = append(out, fmt.Sprintf("%s/%s/%s [%s] %s", g.Vendor, g.DeviceType, g.DeviceName, strings.Join(ids, " "),
			g.Attributes[accel.AttrState].GetStringVal()))
	}
	return out
}

func wantLines(t *testing.T, groups []*devicepb.DeviceGroup, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, lines(groups)); diff != "" {
		t.Errorf("groups (-want +got):\n%s", diff)
	}
}

func short(uuid string) string { return accel.ShortID(accel.NVIDIA, uuid) }

func TestFingerprint_WholeCardsByModelWithDescriptors(t *testing.T) {
	t.Parallel()
	a, b := good("GPU-a", "0000:01:00.0"), good("GPU-b", "0000:02:00.0")
	b.Index, b.NUMANode = 1, ptr(1)
	groups := receive(t, fingerprint(t, start(t, nil, &bench{name: "x", cards: []accel.Card{a, b}})))
	cards := []string{"nvidia/card/A40-" + short("GPU-a") + " [] ok", "nvidia/card/A40-" + short("GPU-b") + " [] ok"}
	slices.Sort(cards)
	wantLines(t, groups, cards[0], cards[1], "nvidia/gpu/A40 [GPU-a GPU-b] ok")

	gpu := groups[2]
	if got := gpu.Devices[1].HwLocality.GetPciBusId(); got != "0000:02:00.0" {
		t.Errorf("locality %q", got)
	}
	want := map[string]*structspb.Attribute{
		"memory": intAttr(46068, "MiB"), "unit_memory": intAttr(46068, "MiB"), "model": textAttr("A40"), "form": textAttr("whole"), "arch": textAttr("Ampere"),
		"form_policy": textAttr("auto"), "driver_version": textAttr("525.60.13"), "state": textAttr("ok"),
	}
	for name, v := range want {
		if got := gpu.Attributes[name]; got.String() != v.String() {
			t.Errorf("%s = %v, want %v", name, got, v)
		}
	}
	if len(gpu.Attributes) != len(want) {
		t.Errorf("a group of several cards has attributes %v", gpu.Attributes)
	}
	for _, g := range groups[:2] {
		if g.Attributes["uuid"].GetStringVal() == "GPU-b" && g.Attributes["numa_node"].GetIntVal() != 1 {
			t.Errorf("descriptor lacks facts: %v", g.Attributes)
		}
	}
}

func TestFingerprint_SharedCardIsItsOwnGroup(t *testing.T) {
	t.Parallel()
	p := start(t, func(c *Config) { c.Forms = map[string]string{"A40": "shared"} }, &bench{name: "x", cards: []accel.Card{good("GPU-a", "")}})
	groups := receive(t, fingerprint(t, p))
	wantLines(t, groups, "nvidia/vgpu/A40-"+short("GPU-a")+" [c"+short("GPU-a")+".0 … 44] ok")
	if a := groups[0].Attributes; a["uuid"].GetStringVal() != "GPU-a" || a["unit_memory"].GetIntVal() != 1024 || a["form_policy"].GetStringVal() != "fixed" {
		t.Errorf("attributes %v", a)
	}
}

func TestFingerprint_SharedCardOfUnknownSize(t *testing.T) {
	t.Parallel()
	c := good("GPU-a", "")
	c.MemoryMiB = nil
	p := start(t, func(c *Config) { c.Forms = map[string]string{"*": "shared"} }, &bench{name: "x", cards: []accel.Card{c}})
	wantLines(t, receive(t, fingerprint(t, p)), "nvidia/vgpu/A40-"+short("GPU-a")+" [c"+short("GPU-a")+".0("+reasonNoSize+")] bad")
}

func TestFingerprint_OnlyRealChangesAreSent(t *testing.T) {
	t.Parallel()
	b := &bench{name: "x", cards: []accel.Card{good("GPU-a", "")}}
	messages := fingerprint(t, start(t, nil, b))
	receive(t, messages)
	waitFor(t, "ten readings", func() bool { b.mu.Lock(); defer b.mu.Unlock(); return b.calls > 10 })
	if len(messages) > 0 {
		t.Errorf("sent again without a change: %v", lines(<-messages))
	}
	b.set(func(b *bench) { b.cards[0] = bad(b.cards[0], "lost") })
	wantLines(t, receive(t, messages), "nvidia/card/A40-"+short("GPU-a")+" [] bad", "nvidia/gpu/A40 [GPU-a(lost)] bad")
	b.set(func(b *bench) { b.cards[0] = good("GPU-a", "") })
	wantLines(t, receive(t, messages), "nvidia/card/A40-"+short("GPU-a")+" [] ok", "nvidia/gpu/A40 [GPU-a] ok")
}

func TestFingerprint_HangingSourceDoesNotStallTheOthers(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	stuck := &bench{name: "stuck", cards: []accel.Card{good("GPU-s", "")}, hang: release}
	fine := &bench{name: "fine", cards: []accel.Card{good("GPU-f", "")}}
	messages := fingerprint(t, start(t, nil, stuck, fine))
	first := lines(receive(t, messages))
	if !slices.Contains(first, "nvidia/gpu/A40 [GPU-f] ok") {
		t.Fatalf("first message %v", first)
	}
	fine.set(func(b *bench) { b.cards = append(b.cards, good("GPU-g", "")) })
	for !slices.Contains(lines(receive(t, messages)), "nvidia/gpu/A40 [GPU-f GPU-g] ok") {
		continue
	}
	stuck.mu.Lock()
	calls := stuck.calls
	stuck.mu.Unlock()
	if calls != 1 {
		t.Errorf("%d calls pile up behind the hanging one", calls)
	}
	close(release)
	stuck.set(func(b *bench) { b.hang = nil })
	for !slices.Contains(lines(receive(t, messages)), "nvidia/gpu/A40 [GPU-f GPU-g GPU-s] ok") {
		continue
	}
}

func TestFingerprint_Disabled(t *testing.T) {
	t.Parallel()
	b := &bench{name: "x", cards: []accel.Card{good("GPU-a", "")}}
	wantLines(t, receive(t, fingerprint(t, start(t, func(c *Config) { c.Enabled = false }, b))))
}

func TestFingerprint_IgnoredAndUnwantedCards(t *testing.T) {
	t.Parallel()
	b := &bench{name: "x", cards: []accel.Card{good("GPU-a", "0000:01:00.0"), good("GPU-b", "0000:02:00.0"), good("GPU-c", "0000:03:00.0")}}
	p := start(t, func(c *Config) { c.IgnoredGPUIDs = []string{"GPU-a", "0000:02:00.0"} }, b)
	wantLines(t, receive(t, fingerprint(t, p)), "nvidia/card/A40-"+short("GPU-c")+" [] ok", "nvidia/gpu/A40 [GPU-c] ok")
	p = start(t, func(c *Config) { c.Vendors = []string{"ascend"} }, b)
	wantLines(t, receive(t, fingerprint(t, p)))
}

func TestFingerprint_PanicOfADetectorIsItsOwnTrouble(t *testing.T) {
	t.Parallel()
	p := New(func(Config) ([]Detector, error) {
		return []Detector{panics{&bench{name: "x"}}, &bench{name: "y", cards: []accel.Card{good("GPU-a", "")}}}, nil
	}, hclog.NewNullLogger())
	cfg := DefaultConfig()
	cfg.StateDir = t.TempDir()
	if err := p.Use(cfg); err != nil {
		t.Fatal(err)
	}
	wantLines(t, receive(t, fingerprint(t, p)), "nvidia/card/A40-"+short("GPU-a")+" [] ok", "nvidia/gpu/A40 [GPU-a] ok")
}

type panics struct{ *bench }

func (panics) Detect(context.Context) ([]accel.Card, error) { panic("broken") }

func reservation(t *testing.T, p *Plugin, ids ...string) (grant.Reservation, map[string]string) {
	t.Helper()
	res, err := p.Reserve(context.Background(), ids)
	if err != nil {
		t.Fatal(err)
	}
	if len(res.Mounts) != 0 || len(res.Devices) != 0 {
		t.Errorf("reserved more than env: %v", res)
	}
	all, err := grant.Reservations(res.Envs)
	if err != nil || len(all) != 1 {
		t.Fatalf("reservations %v, %v", all, err)
	}
	return all[0], res.Envs
}

func TestReserve(t *testing.T) {
	t.Parallel()
	a, b := good("GPU-a", "0000:01:00.0"), good("GPU-b", "0000:02:00.0")
	b.Index = 1
	p := start(t, func(c *Config) { c.Forms = map[string]string{"0": "shared"} }, &bench{name: "x", cards: []accel.Card{a, b}})
	receive(t, fingerprint(t, p))

	whole, own := reservation(t, p, "GPU-b")
	if own["NVIDIA_VISIBLE_DEVICES"] != "GPU-b" || own["CUDA_VISIBLE_DEVICES"] != "GPU-b" || len(own) != 3 {
		t.Errorf("environment for drivers that know no grants: %v", own)
	}
	want := grant.Reservation{Version: 1, Vendor: accel.NVIDIA, Form: accel.Whole, Instances: []string{"GPU-b"}, UnitMiB: 46068, Cards: []grant.Card{
		{UUID: "GPU-b", Model: "A40", Index: 1, PCI: "0000:02:00.0", MemoryMiB: 46068, Units: 1},
	}}
	if diff := cmp.Diff(want, whole); diff != "" {
		t.Errorf("whole (-want +got):\n%s", diff)
	}
	s0, s10 := a.SliceID(0), a.SliceID(10)
	shared, env := reservation(t, p, s10, s0)
	if shared.Form != accel.Shared || shared.UnitMiB != 1024 || len(shared.Cards) != 1 || shared.Cards[0].Units != 2 {
		t.Errorf("shared: %+v", shared)
	}
	if _, again := reservation(t, p, s0, s10); !cmp.Equal(env, again) {
		t.Errorf("not idempotent: %v and %v", env, again)
	}
	for name, tc := range map[string]struct {
		ids  []string
		want string
	}{
		"unknown":                 {[]string{"GPU-z"}, `unknown device "GPU-z"`},
		"a shared card as whole":  {[]string{"GPU-a"}, `unknown device "GPU-a"`},
		"beyond the last slice":   {[]string{a.SliceID(44)}, "unknown device"},
		"two groups in one block": {[]string{"GPU-b", s0}, "different device groups"},
		"nothing":                 {nil, "no instance ids"},
	} {
		if _, err := p.Reserve(context.Background(), tc.ids); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: error %v, want one with %q", name, err, tc.want)
		}
	}
}

func TestReserve_SickCardIsRefusedWithItsReason(t *testing.T) {
	t.Parallel()
	p := start(t, nil, &bench{name: "x", cards: []accel.Card{bad(good("GPU-a", ""), "GPU is lost")}})
	receive(t, fingerprint(t, p))
	if _, err := p.Reserve(context.Background(), []string{"GPU-a"}); err == nil || !strings.Contains(err.Error(), "GPU is lost") {
		t.Errorf("error %v", err)
	}
}

func TestStats_OneValuePerCard(t *testing.T) {
	t.Parallel()
	a, b, c := good("GPU-a", ""), good("GPU-b", ""), good("GPU-c", "")
	a.Index, b.Index, c.Index = 0, 1, 2
	det := &bench{name: "x", cards: []accel.Card{a, b, c}, samples: map[string]Sample{
		"GPU-a": {MemoryUsedMiB: ptr[uint64](100), TemperatureC: ptr(40.)}, "GPU-b": {PowerW: ptr(0.)},
	}}
	p := start(t, func(c *Config) { c.Forms = map[string]string{"0": "shared"} }, det)
	receive(t, fingerprint(t, p))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var got []*devicepb.DeviceGroupStats
	err := p.Stats(ctx, time.Hour, func(g []*devicepb.DeviceGroupStats) error { got = g; cancel(); return nil })
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if len(got) != 2 || got[0].Type != "vgpu" || got[1].Type != "gpu" || len(got[0].InstanceStats) != 1 || len(got[1].InstanceStats) != 1 {
		t.Fatalf("groups %v", got)
	}
	shared := got[0].InstanceStats[a.SliceID(0)]
	if shared.GetSummary().GetIntNumeratorVal().GetValue() != 100 || shared.GetSummary().GetIntDenominatorVal().GetValue() != 46068 || !shared.GetTimestamp().IsValid() {
		t.Errorf("shared %v", shared)
	}
	whole := got[1].InstanceStats["GPU-b"]
	if _, invented := whole.Stats.Attributes["temperature"]; invented || whole.Summary.StringVal.GetValue() != "unknown" {
		t.Errorf("unknown numbers were invented: %v", whole)
	}
	if v, ok := whole.Stats.Attributes["power"]; !ok || v.FloatNumeratorVal.GetValue() != 0 {
		t.Errorf("a real 0 was dropped: %v", whole)
	}
}

func TestConfigure_DecodesAndRefuses(t *testing.T) {
	t.Parallel()
	p := start(t, nil)
	if err := p.Configure(nil); err != nil {
		t.Errorf("no config: %v", err)
	}
	if err := p.Configure([]byte{0xc1, 0xff}); err == nil {
		t.Error("garbage is accepted")
	}
}

func waitFor(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !done(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

func leaseDir(p *Plugin) string { return filepath.Join(p.set.StateDir, "leases") }

// Two tools may list one card, such as a maker's new and old one: it is offered once, and always by the same of them.
func TestFingerprint_CardOfTwoSources(t *testing.T) {
	t.Parallel()
	const first, second = 0, 1
	want := []string{
		"nvidia/card/A40-49574521 [] ok", "nvidia/card/A40-" + accel.ShortID(accel.NVIDIA, "GPU-b") + " [] ok", "nvidia/gpu/A40 [GPU-a GPU-b] ok",
	}
	for name, readings := range map[string][]int{
		"in their order":              {first, second, first, second},
		"the second is read before":   {second, first, second, first},
		"the second is read oftener":  {second, second, first, second, second, second},
		"the first is read oftener":   {first, first, second, first, first, first},
		"the second is late and once": {first, first, second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			again := good("GPU-a", "0000:01:00.0")
			again.Model = "A40-again"
			p := start(t, nil, &bench{name: "first", cards: []accel.Card{good("GPU-a", "0000:01:00.0")}},
				&bench{name: "second", cards: []accel.Card{again, good("GPU-b", "0000:02:00.0")}})
			if err := p.ready(); err != nil {
				t.Fatal(err)
			}
			read := map[int]bool{}
			for step, n := range readings {
				p.observe(t.Context(), p.sources[n])
				if read[n] = true; len(read) < 2 {
					continue
				}
				if groups, _ := p.groups(); !slices.Equal(lines(groups), want) {
					t.Errorf("reading %d: %v, want %v", step, lines(groups), want)
				}
			}
		})
	}
}

package flight

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"
	"pgregory.net/rapid"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/placement-service/engine"
)

var epoch = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

func node(id string, used int) engine.Node {
	return engine.Node{
		ID: id, Name: "name-" + id, Datacenter: "dc1", Ready: true, CPUMHz: 64000, MemoryMiB: 512 << 10, UsedCPUMHz: used,
		Drivers: map[string]bool{"heteroflow": true}, Attrs: map[string]string{"meta.rack": "r1"},
		Pools: []engine.Pool{{
			Group: "nvidia/vgpu/A100-" + id, Vendor: accel.NVIDIA, Type: "vgpu", Name: "A100-" + id, Model: "A100", Form: accel.Shared,
			UnitMiB: 1024, Total: 80, Used: used, Modes: []string{"mps"},
			Cards: []engine.Card{{UUID: "GPU-" + id, Healthy: true, Units: 80, UsedUnits: used}},
		}},
	}
}

func request(mib uint64) engine.Request {
	return engine.Request{JobID: "llm", Namespace: "default", Groups: []engine.GroupAsk{{
		Name: "g", Count: 1, CPUMHz: 100, Tasks: []engine.TaskAsk{{Name: "t", Driver: "heteroflow", Ask: &accel.Ask{Count: 1, MemoryMiB: mib}}},
	}}}
}

func decided(s engine.Snapshot, r engine.Request, at time.Time) Entry {
	return decidedBy(nil, 0, s, r, at)
}

func decidedBy(learnt *engine.Learnt, level int, s engine.Snapshot, r engine.Request, at time.Time) Entry {
	e := engine.New(engine.Config{Learnt: learnt, Level: level})
	return Entry{At: at, Plugins: e.Settings(), Learnt: learnt, Level: level, Snapshot: s, Request: r, Decision: e.Decide(s, r)}
}

// learnt are nothing, and demands of small and of large shares.
func learnt() []*engine.Learnt {
	out := []*engine.Learnt{nil}
	for _, mib := range []uint64{7 << 10, 50 << 10} {
		asked := engine.AsksOf(request(mib))
		asked[0].Weight = 100
		out = append(out, engine.Learn(engine.Demand{}.Add(asked).On(engine.Snapshot{Nodes: []engine.Node{node("a", 0)}})))
	}
	return out
}

var byDemand = cmp.Comparer(func(a, b *engine.Learnt) bool { return cmp.Equal(a.Demand(), b.Demand()) })

func open(t testing.TB, dir string) *Recorder {
	t.Helper()
	r, err := Open(dir, 64<<20, clock.NewFake(epoch), hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func all(t testing.TB, path string) []Entry {
	t.Helper()
	var out []Entry
	for e, err := range Files(path) {
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, e)
	}
	return out
}

// What is read is what was recorded, whatever changed in between, and it is decided again to the same bits.
func TestRecorder_Properties(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp(t.TempDir(), "")
		if err != nil {
			rt.Fatal(err)
		}
		r := open(t, dir)
		now := map[string]engine.Node{}
		var want []Entry
		demands := learnt()
		for i := range rapid.IntRange(1, 12).Draw(rt, "decisions") {
			for range rapid.IntRange(0, 4).Draw(rt, "changes") {
				id := rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(rt, "node")
				if rapid.IntRange(0, 3).Draw(rt, "what") == 0 {
					delete(now, id)
				} else {
					now[id] = node(id, rapid.IntRange(0, 80).Draw(rt, "used"))
				}
			}
			var s engine.Snapshot
			for _, id := range []string{"c", "a", "d", "b"} {
				if n, ok := now[id]; ok {
					s.Nodes = append(s.Nodes, n)
				}
			}
			e := decidedBy(rapid.SampledFrom(demands).Draw(rt, "demand"), rapid.IntRange(0, 4).Draw(rt, "level"), s,
				request(uint64(rapid.IntRange(1, 90).Draw(rt, "gib"))<<10), epoch.Add(time.Duration(i)*time.Second))
			r.Record(e)
			want = append(want, e)
		}
		if err := r.Close(); err != nil {
			rt.Fatal(err)
		}
		got := all(t, dir)
		if diff := cmp.Diff(want, got, byDemand); diff != "" || r.Lost() != 0 {
			rt.Fatalf("%d lost, entries (-recorded +read)\n%s", r.Lost(), diff)
		}
		for _, e := range got {
			if o := Replay(e, nil).Outcome(); o != Same {
				rt.Fatalf("decided again: %s", o)
			}
		}
	})
}

func TestRecorder_KeepsWithinItsLimit(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for i := range 3 {
		old := filepath.Join(dir, fmt.Sprintf("2026010%dT000000.000000000%s", i, suffix))
		if err := os.WriteFile(old, make([]byte, 3<<20), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	foreign := filepath.Join(dir, "notes.txt")
	if err := os.WriteFile(foreign, make([]byte, 64<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := Open(dir, 12<<20, clock.NewFake(epoch), hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	left, err := files(dir)
	if err != nil || len(left) != 2 || !strings.Contains(left[0], "20260102") {
		t.Errorf("left are %v, %v: want the newest old one and the new one", left, err)
	}
	if _, err := os.Stat(foreign); err != nil {
		t.Errorf("somebody else's file: %v", err)
	}
	if _, err := Open(dir, 1000, clock.NewFake(epoch), hclog.NewNullLogger()); err == nil || !strings.Contains(err.Error(), "write at least") {
		t.Errorf("a limit too small for one file: %v", err)
	}
}

func TestRead_CutFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := open(t, dir)
	for i := range 20 {
		r.Record(decided(engine.Snapshot{Nodes: []engine.Node{node("a", i)}}, request(1024), epoch))
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	names, err := files(dir)
	if err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(names[0])
	if err != nil {
		t.Fatal(err)
	}
	most := 0
	for cut := range len(whole) {
		read := 0
		var last error
		for _, err := range Read(bytes.NewReader(whole[:cut])) {
			if last = err; err == nil {
				read++
			}
		}
		if cut > 20 && !errors.Is(last, ErrCut) {
			t.Fatalf("cut at %d of %d: %v", cut, len(whole), last)
		}
		most = max(most, read)
	}
	if most < 19 {
		t.Errorf("of 20 decisions at most %d are read of a cut file", most)
	}
}

func TestRead_Refuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ text, want string }{
		"another format":  {`{"v":2}`, "newer heteroflow"},
		"no beginning":    {`{"v":1,"order":["a"]}`, "lines that are missing"},
		"an odd demand":   {`{"v":1,"anew":true,"demand":{"observed":-1}}`, "a demand of -1"},
		"an unknown node": {`{"v":1,"anew":true,"order":["a"]}`, "lines that are missing"},
		"no JSON":         {`hello`, "decision 1"},
	} {
		var last error
		for _, err := range Read(bytes.NewReader(zipped(c.text))) {
			last = err
		}
		if last == nil || !strings.Contains(last.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, last, c.want)
		}
	}
	for _, err := range Read(strings.NewReader("no zip")) {
		if err == nil || !strings.Contains(err.Error(), "not a file of decisions") {
			t.Errorf("plain text: %v", err)
		}
	}
	for _, err := range Files(t.TempDir()) {
		if err == nil || !strings.Contains(err.Error(), "-record") {
			t.Errorf("empty folder: %v", err)
		}
	}
}

func TestReplay_Outcomes(t *testing.T) {
	t.Parallel()
	spread := []engine.PluginSetting{{Name: "potential"}, {Name: "spread", Enabled: true, Weight: 1}}
	two := engine.Snapshot{Nodes: []engine.Node{node("a", 40), node("b", 0)}}
	open := []engine.PluginSetting{{Name: "gpu_filter"}}
	brand := request(1024)
	brand.Groups[0].Tasks[0].Ask.Vendors = []accel.Vendor{accel.Ascend}
	for name, c := range map[string]struct {
		entry  Entry
		change []engine.PluginSetting
		want   Outcome
		words  string
	}{
		"as it was":          {decided(two, request(1024), epoch), nil, Same, "on a"},
		"elsewhere":          {decided(two, request(1024), epoch), spread, Moves, "on b"},
		"by other scores":    {decided(engine.Snapshot{Nodes: two.Nodes[:1]}, request(1024), epoch), spread, Scores, "on a"},
		"without the filter": {decided(two, brand, epoch), open, Wins, "on a"},
	} {
		r := Replay(c.entry, c.change)
		if got := r.Outcome(); got != c.want || Words(r.Now) != c.words {
			t.Errorf("%s: %s %s, want %s %s", name, got, Words(r.Now), c.want, c.words)
		}
	}
	back := Replay(decided(two, brand, epoch), open)
	back.Decision, back.Now = back.Now, back.Decision
	if got := back.Outcome(); got != Loses || Words(back.Now) != "brand" {
		t.Errorf("the other way round: %s %s", got, Words(back.Now))
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"v":1,"anew":true,"nodes":[{"id":"a"}],"order":["a"],"request":{},"decision":{"placed":false}}`))
	f.Add([]byte(`{"v":1,"gone":["a"]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		for e, err := range Read(bytes.NewReader(zipped(string(text)))) {
			if err == nil && slices.ContainsFunc(e.Snapshot.Nodes, func(n engine.Node) bool { return n.ID == "" }) && !bytes.Contains(text, []byte(`""`)) {
				t.Errorf("a node without an id: %+v", e)
			}
		}
	})
}

func zipped(text string) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write([]byte(text)); err != nil {
		panic(err)
	}
	if err := z.Close(); err != nil {
		panic(err)
	}
	return b.Bytes()
}

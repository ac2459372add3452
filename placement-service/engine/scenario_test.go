package engine

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/internal/accel"
)

var update = flag.Bool("update", false, "rewrite what the scenarios expect")

// scenario is a cluster, asks in the order in which they come, and what is expected of each. Placed asks are booked
// before the next one.
type scenario struct {
	About   string          `json:"about"`
	Plugins []PluginSetting `json:"plugins,omitempty"`
	Nodes   json.RawMessage `json:"nodes"`
	Steps   []step          `json:"steps"`
}

type step struct {
	Ask  scenarioAsk `json:"ask"`
	Want outcome     `json:"want"`
}

type scenarioAsk struct {
	Allocations int            `json:"allocations,omitempty"`
	Count       int            `json:"count,omitempty"`
	GiB         uint64         `json:"gib,omitempty"` // 0 asks for whole cards
	QoS         accel.QoS      `json:"qos,omitempty"`
	Vendors     []accel.Vendor `json:"vendors,omitempty"`
	Models      []string       `json:"models,omitempty"`
	CPU         int            `json:"cpu,omitempty"`
	Memory      int            `json:"memory,omitempty"`
	Disk        int            `json:"disk,omitempty"`
	Datacenters []string       `json:"datacenters,omitempty"`
	NodePool    string         `json:"node_pool,omitempty"`
	Constraints []Constraint   `json:"constraints,omitempty"`
	Distinct    bool           `json:"distinct_hosts,omitempty"`
	Loose       string         `json:"loose,omitempty"`
	Runtime     string         `json:"runtime,omitempty"`
	Tasks       []scenarioAsk  `json:"tasks,omitempty"` // several tasks in the group, instead of one
}

type outcome struct {
	Places   []string `json:"places,omitempty"`
	QoS      string   `json:"qos,omitempty"`
	Blocks   []string `json:"blocks,omitempty"`
	Code     Code     `json:"code,omitempty"`
	Sentence string   `json:"sentence,omitempty"`
	Never    bool     `json:"never,omitempty"`
	Counts   []string `json:"counts,omitempty"`
	Switches []string `json:"switches,omitempty"`
}

func (a scenarioAsk) request() Request {
	r := ask(or(a.Allocations, 1), a.ask())
	r.Datacenters, r.NodePool, r.Loose = a.Datacenters, a.NodePool, a.Loose
	g := &r.Groups[0]
	g.CPUMHz, g.MemoryMiB, g.DiskMiB = or(a.CPU, g.CPUMHz), or(a.Memory, g.MemoryMiB), a.Disk
	g.Constraints, g.DistinctHosts = a.Constraints, a.Distinct
	g.Tasks[0].Runtime = a.Runtime
	if len(a.Tasks) > 0 {
		g.Tasks = nil
		for i, t := range a.Tasks {
			one := t.ask()
			g.Tasks = append(g.Tasks, TaskAsk{Name: fmt.Sprintf("task%d", i), Driver: "heteroflow", Ask: &one})
		}
	}
	return r
}

func (a scenarioAsk) ask() accel.Ask {
	return accel.Ask{Count: or(a.Count, 1), MemoryMiB: a.GiB * 1024, QoS: a.QoS, Vendors: a.Vendors, Models: a.Models}
}

func outcomeOf(s Snapshot, d Decision) outcome {
	out := outcome{Places: where(s, d)}
	for _, g := range d.Groups {
		for _, t := range g.Tasks {
			out.QoS = string(t.QoS)
			for _, b := range t.Blocks {
				words := []string{fmt.Sprintf("%d of %s", b.Count, b.Device)}
				for _, a := range b.Allow {
					words = append(words, a.Attribute+" in "+strings.Join(a.Values, ","))
				}
				out.Blocks = append(out.Blocks, strings.Join(words, ", "))
			}
		}
	}
	for _, sw := range d.Switches {
		out.Switches = append(out.Switches, fmt.Sprintf("%s %s to %s", sw.NodeID, sw.CardUUID, sw.To))
	}
	if r := d.Refusal; r != nil {
		out.Code, out.Sentence, out.Never = r.Code, r.Sentence, r.Never
		for _, c := range r.Counts {
			out.Counts = append(out.Counts, fmt.Sprintf("%d %s (%s)", c.Nodes, c.Code, c.Example))
		}
	}
	return out
}

func TestScenarios(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/scenarios/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".json"), func(t *testing.T) {
			t.Parallel()
			runScenario(t, file)
		})
	}
}

func runScenario(t *testing.T, file string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var sc scenario
	var nodes []testNode
	if err := json.Unmarshal(text, &sc); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(sc.Nodes, &nodes); err != nil {
		t.Fatal(err)
	}
	s := snapshotOf(nodes...)
	e := New(Config{Plugins: sc.Plugins})
	for i := range sc.Steps {
		r := sc.Steps[i].Ask.request()
		d := e.Decide(s, r)
		got := outcomeOf(s, d)
		if *update {
			sc.Steps[i].Want = got
		} else if diff := cmp.Diff(sc.Steps[i].Want, got); diff != "" {
			t.Errorf("%s, step %d (-want +got)\n%s", sc.About, i, diff)
		}
		book(t, s, r, d)
	}
	if *update {
		rewrite(t, file, sc)
	}
}

func rewrite(t *testing.T, file string, sc scenario) {
	t.Helper()
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(sc); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

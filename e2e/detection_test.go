package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/api/client"
	"github.com/heteroflow/heteroflow/device-plugins/health"
	"github.com/heteroflow/heteroflow/e2e/cluster"
	"github.com/heteroflow/heteroflow/internal/testkit/postgres"
)

// detectionSettle is how long a change of the node may take to be seen. Nomad's clients wait for 5 to 10 seconds before
// they tell their server.
const detectionSettle = 60 * time.Second

// A node with cards of four brands as their makers' tools show them, on every engine at once: what is seen of them, what
// runs on them, and what becomes of it when tools, cards and plugins fail.
func TestDetection(t *testing.T) {
	programs := t.TempDir()
	probe := cluster.Static(t, programs, "e2e/probe")
	newer := t.TempDir()
	cluster.Version(t, newer, newerVersion, "cmd/heteroflow-device", "cmd/heteroflow-driver")
	found := cluster.RealNomads()
	// All at once, however few processors there are: nearly all of the time is spent waiting.
	var engines sync.WaitGroup
	defer engines.Wait()
	for _, name := range append([]string{"embedded"}, wantedNomads...) {
		engines.Go(func() {
			t.Run(name, func(t *testing.T) {
				o := cluster.Options{
					Sim: smallCards, Period: "300ms", Device: `recovery_hold = "1s"`,
					Nomad: found[name],
				}
				if name != "embedded" {
					if o.Nomad == "" {
						t.Skipf("no %s on PATH: detection met no such real Nomad", name)
					}
					o.Database = postgres.SchemaURL(t)
				}
				b := newBox(t)
				o.Path, o.Root = b.bin, b.root
				s := &suite{Cluster: cluster.Start(t, o), t: t}
				s.probe = s.copyOf(probe) // processes are told apart by their file
				s.awaitCards(len(boxCards))
				for _, sc := range []struct {
					name string
					run  func(*suite, *box)
				}{
					{"brands by their tools", brandsByTheirTools},
					{"a tool that hangs", toolThatHangs},
					{"stock jobspec", stockJobspec},
					{"sick card and waiting jobs", sickCardAndWaitingJobs},
					{"quiet under load", quietUnderLoad},
					{"plugins end under running tasks", func(s *suite, b *box) { pluginsEnd(s, b, newer) }},
				} {
					t.Run(sc.name, func(t *testing.T) {
						in := &suite{Cluster: s.For(t), t: t, probe: s.probe, others: o.Nomad != ""}
						sc.run(in, b)
						if !t.Failed() {
							in.allGivenBack()
						}
					})
				}
			})
		})
	}
}

func (s *suite) copyOf(program string) string {
	s.t.Helper()
	body, err := os.ReadFile(program)
	if err != nil {
		s.t.Fatal(err)
	}
	path := filepath.Join(s.Dir, filepath.Base(program))
	if err := os.WriteFile(path, body, 0o755); err != nil {
		s.t.Fatal(err)
	}
	return path
}

func (s *suite) node() (*api.Node, error) {
	var nodes []api.NodeListStub
	if err := s.Nomads(http.MethodGet, "/v1/nodes", nil, &nodes); err != nil {
		return nil, err
	}
	if len(nodes) != 1 {
		return nil, fmt.Errorf("%d nodes", len(nodes))
	}
	var node api.Node
	err := s.Nomads(http.MethodGet, "/v1/node/"+nodes[0].ID, nil, &node)
	return &node, err
}

// offered are the node's devices, a line for each instance and each card's descriptor.
func offered(node *api.Node) []string {
	var lines []string
	for _, g := range node.NodeResources.Devices {
		attr := func(name string) string {
			if a := g.Attributes[name]; a != nil {
				return a.String()
			}
			return "?"
		}
		memory := attr("memory")
		if g.Type == "card" {
			name := g.Name[:strings.LastIndexByte(g.Name, '-')] // the rest is short for the identity
			lines = append(lines, fmt.Sprintf("%s/card/%s %s %s %s", g.Vendor, name, attr("uuid"), memory, attr("state")))
		}
		for _, i := range g.Instances {
			lines = append(lines, fmt.Sprintf("%s/%s/%s %s %s %s", g.Vendor, g.Type, g.Name, i.ID, memory, stateOf(i.Healthy, i.HealthDescription)))
		}
	}
	slices.Sort(lines)
	return lines
}

func stateOf(ok bool, reason string) string {
	if ok {
		return "ok"
	}
	return reason
}

// wanted is what the node offers when the cards are as the box has them, but for those that are sick, by UUID.
func wanted(sick map[string]string) []string {
	var lines []string
	for _, c := range boxCards {
		state, word := "ok", "ok"
		if why := sick[c.uuid]; why != "" {
			state, word = why, "bad"
		}
		lines = append(
			lines, fmt.Sprintf("%s/gpu/%s %s %d MiB %s", c.vendor, c.model, c.uuid, c.memory, state),
			fmt.Sprintf("%s/card/%s %s %d MiB %s", c.vendor, c.model, c.uuid, c.memory, word),
		)
	}
	slices.Sort(lines)
	return lines
}

// awaitOffered waits until the node offers exactly the box's cards, with these sick.
func (s *suite) awaitOffered(sick map[string]string) {
	s.t.Helper()
	s.Eventually(detectionSettle, "the node offers what there is", func() error {
		node, err := s.node()
		if err != nil {
			return err
		}
		if diff := cmp.Diff(wanted(sick), offered(node)); diff != "" {
			return fmt.Errorf("(-want +got):\n%s", diff)
		}
		return nil
	})
}

// sickNow are the cards that the plugin holds to be sick, by its own history: before Nomad knows.
func (s *suite) sickNow() map[string]string {
	s.t.Helper()
	records, err := health.Read(filepath.Join(s.Dir, "state"))
	if err != nil {
		s.t.Fatal(err)
	}
	sick := map[string]string{}
	for _, r := range records {
		switch r.Kind {
		case health.Unhealthy:
			sick[r.Card] = r.Reason
		case health.Healthy:
			delete(sick, r.Card)
		}
	}
	return sick
}

// What the tools print is what the node offers and the CLI shows, card by card, and nothing else.
func brandsByTheirTools(s *suite, _ *box) {
	s.awaitOffered(nil)
	out, errs, code := s.CLI("heteroflow", "gpus", "-json")
	var list client.GPUList
	if err := json.Unmarshal([]byte(out), &list); err != nil || code != 0 {
		s.t.Fatalf("gpus -json: exit %d, %v\n%s%s", code, err, out, errs)
	}
	var want, got []string
	for _, c := range boxCards {
		want = append(want, fmt.Sprintf("%s %s %s #%d %d MiB true", c.vendor, c.model, c.uuid, c.index, c.memory))
	}
	for _, g := range list.Items {
		got = append(got, fmt.Sprintf("%s %s %s #%d %d MiB %v", g.Vendor, g.Model, g.UUID, g.Index, g.Memory.TotalMiB, g.Healthy))
	}
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		s.t.Errorf("gpus -json (-want +got):\n%s", diff)
	}
	text, errs, code := s.CLI("heteroflow", "gpus", "-verbose")
	for _, c := range boxCards {
		if code != 0 || !strings.Contains(text, c.model) || !strings.Contains(text, c.uuid) {
			s.t.Fatalf("gpus -verbose does not show %s %s: exit %d\n%s%s", c.model, c.uuid, code, text, errs)
		}
	}
}

// A tool that never ends makes its own cards unhealthy, with the reason. All other brands are read on at their pace: what
// befalls their cards is noticed within 6 seconds, over and over, and jobs start on them.
func toolThatHangs(s *suite, b *box) {
	defer b.mend(s.t)
	b.hang(s.t)
	hung := map[string]string{}
	for _, c := range boxCards {
		if c.vendor == "cambricon" {
			hung[c.uuid] = "cnmon does not answer"
		}
	}
	s.awaitSick(30*time.Second, hung) // three calls of 4 seconds
	before := len(b.tools["cnmon"].Calls(s.t))
	broken := map[string]string{"PCI-0000:39:00.0": hung["PCI-0000:39:00.0"], "PCI-0000:3d:00.0": hung["PCI-0000:3d:00.0"]}
	for _, c := range boxCards {
		if why := brokenTools[c.vendor]; why != "" && !strings.HasPrefix(c.uuid, "SIM-") {
			broken[c.uuid] = why
		}
	}
	for round := 1; ; round++ {
		b.breakOthers(s.t)
		s.awaitSick(6*time.Second, broken)
		if round == 1 {
			s.awaitOffered(broken)
		}
		b.loadOthers(s.t, 0)
		s.awaitSick(6*time.Second, hung)
		if calls := len(b.tools["cnmon"].Calls(s.t)) - before; calls >= 3 && round >= 3 {
			break // the tool was asked, and hung, again and again meanwhile
		}
	}
	s.awaitOffered(hung)
	s.mustSubmit(probeJob{id: "beside-a-hang", kind: "batch", args: []string{"env"}, ask: `vendor = ["kunlunxin"]`})
	s.awaitAllocs("beside-a-hang", "complete", 1)
	b.mend(s.t)
	s.awaitOffered(nil)
}

// awaitSick waits until the plugin holds exactly these cards to be sick.
func (s *suite) awaitSick(limit time.Duration, want map[string]string) {
	s.t.Helper()
	s.Eventually(limit, "the plugin notices", func() error {
		if diff := cmp.Diff(want, s.sickNow()); diff != "" {
			return fmt.Errorf("sick cards (-want +got):\n%s", diff)
		}
		return nil
	})
}

package e2e

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"sort"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/api/client"
	"github.com/heteroflow/heteroflow/e2e/cluster"
)

// Boxes whose nvidia-smi was recorded, played by a stand-in on the agent's PATH: what the CLI shows, what the node
// offers and where a job lands are right.
func TestStandIns(t *testing.T) {
	_, here, _, _ := runtime.Caller(0)
	standin := filepath.Join(filepath.Dir(here), "..", "device-plugins", "nvidia", "testdata", "standin")
	programs := t.TempDir()
	probe := cluster.Static(t, programs, "e2e/probe")
	agents := map[string]string{"embedded": ""}
	if path := cluster.RealNomads()["nomad"]; path != "" {
		agents["nomad"] = path
	}
	for _, box := range []struct {
		name   string
		groups map[string]int // device group with instances → healthy instances
		sick   int
		job    probeJob
		model  string // of the card the job lands on
	}{
		{
			name: "a40-one-dead", groups: map[string]int{"nvidia/gpu/A40": 7}, sick: 1,
			job: probeJob{id: "on-box", args: []string{"hold"}, ask: `model = ["A40"]`}, model: "A40",
		},
		{
			name: "a40-table-only", groups: map[string]int{"nvidia/gpu/A40": 7}, sick: 1,
			job: probeJob{id: "on-box", args: []string{"hold"}, ask: `memory = "10GiB"`}, model: "A40",
		},
		{
			name: "h100-mig", groups: map[string]int{
				"nvidia/gpu/H100-80GB-HBM3 MIG 3g.40gb": 1, "nvidia/gpu/H100-80GB-HBM3 MIG 2g.20gb": 1, "nvidia/gpu/H100-80GB-HBM3 MIG 1g.10gb": 2,
			},
			job: probeJob{id: "on-box", args: []string{"hold"}, ask: `model = ["* MIG 3g.40gb"]`}, model: "H100-80GB-HBM3 MIG 3g.40gb",
		},
		{
			name: "rtx5070-lost-beside", groups: map[string]int{"nvidia/gpu/GeForce-RTX-5070-Ti": 1}, sick: 1,
			job: probeJob{id: "on-box", args: []string{"hold"}, ask: `vendor = ["nvidia"]`}, model: "GeForce-RTX-5070-Ti",
		},
	} {
		for agent, path := range agents {
			t.Run(box.name+" on "+agent, func(t *testing.T) {
				bin := t.TempDir()
				if err := os.Symlink(filepath.Join(standin, "boxes", box.name), filepath.Join(bin, "box")); err != nil {
					t.Fatal(err)
				}
				script, err := os.ReadFile(filepath.Join(standin, "nvidia-smi"))
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(bin, "nvidia-smi"), script, 0o755); err != nil {
					t.Fatal(err)
				}
				s := &suite{Cluster: cluster.Start(t, cluster.Options{Nomad: path, Path: bin, NoCards: true}), t: t, probe: probe}
				want := box.sick
				for _, n := range box.groups {
					want += n
				}
				s.awaitCards(want)
				if diff := cmp.Diff(box.groups, s.healthyGroups()); diff != "" {
					t.Errorf("groups the node offers (-want +got):\n%s", diff)
				}
				s.cliShows(box.sick)
				s.mustSubmit(box.job)
				alloc := s.awaitAllocs("on-box", "running", 1)[0]
				env := s.env(alloc.ID)
				landed := ""
				for _, card := range s.gpus() {
					if card.UUID == env["HETEROFLOW_CARDS"] {
						landed = card.Model
						if !card.Healthy {
							t.Errorf("the job landed on a sick card: %+v", card)
						}
					}
				}
				if landed != box.model || env["NVIDIA_VISIBLE_DEVICES"] != env["HETEROFLOW_CARDS"] {
					t.Errorf("landed on %q with cards %q visible %q, want a %s", landed, env["HETEROFLOW_CARDS"], env["NVIDIA_VISIBLE_DEVICES"], box.model)
				}
				s.allGivenBack()
			})
		}
	}
}

// healthyGroups are the node's device groups with the number of their healthy instances.
func (s *suite) healthyGroups() map[string]int {
	s.t.Helper()
	var nodes []api.NodeListStub
	if err := s.Nomads(http.MethodGet, "/v1/nodes", nil, &nodes); err != nil {
		s.t.Fatal(err)
	}
	groups := map[string]int{}
	for _, stub := range nodes {
		var node api.Node
		if err := s.Nomads(http.MethodGet, "/v1/node/"+stub.ID, nil, &node); err != nil {
			s.t.Fatal(err)
		}
		for _, g := range node.NodeResources.Devices {
			for _, i := range g.Instances {
				if i.Healthy {
					groups[g.Vendor+"/"+g.Type+"/"+g.Name]++
				}
			}
		}
	}
	return groups
}

// cliShows checks `heteroflow gpus`, as text and as JSON.
func (s *suite) cliShows(sick int) {
	s.t.Helper()
	out, errs, code := s.CLI("heteroflow", "gpus", "-json")
	var list client.GPUList
	if err := json.Unmarshal([]byte(out), &list); err != nil || code != 0 {
		s.t.Fatalf("gpus -json: exit %d, %v\n%s%s", code, err, out, errs)
	}
	unhealthy, models := 0, []string{}
	for _, card := range list.Items {
		if !card.Healthy {
			unhealthy++
			if card.HealthReason == nil || *card.HealthReason == "" {
				s.t.Errorf("%s is sick without a reason", card.UUID)
			}
		}
		models = append(models, card.Model)
	}
	if unhealthy != sick {
		s.t.Errorf("%d cards are sick, want %d", unhealthy, sick)
	}
	sort.Strings(models)
	text, errs, code := s.CLI("heteroflow", "gpus")
	if code != 0 {
		s.t.Errorf("gpus: exit %d\n%s%s", code, text, errs)
	}
	for _, m := range models {
		if !strings.Contains(text, m) {
			s.t.Errorf("gpus does not show %s:\n%s", m, text)
		}
	}
}

// Without Consul the services stand in the engine's own registry, and the gateway reads it.
func TestInferenceWithoutConsul(t *testing.T) {
	programs := t.TempDir()
	s := &suite{t: t, inference: cluster.Static(t, programs, "cmd/heteroflow-sim-inference")}
	s.Cluster = cluster.Start(t, cluster.Options{Sim: simNode})
	s.awaitCards(simCards)
	inferenceService(s)
	s.allGivenBack()
}

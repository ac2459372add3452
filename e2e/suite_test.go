// Package e2e is the end-to-end suite: it starts the built binaries and looks at them from outside. One suite runs
// on the embedded engine and on every real Nomad on PATH. It tests no function of any package.
package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/api/client"
	"github.com/heteroflow/heteroflow/e2e/cluster"
	"github.com/heteroflow/heteroflow/internal/testkit/postgres"
)

func TestMain(m *testing.M) { os.Exit(postgres.Main(m)) }

// One node with cards of eight brands. The H100 is the card on which shares are tried.
const simNode = `
seed = 1
card "nvidia"    {
  model  = "A100-SXM4-80GB"
  count  = 2
  memory = "80GiB"
}
card "nvidia"    {
  model  = "H100-80GB"
  count  = 1
  memory = "80GiB"
}
card "mthreads"  {
  model  = "S4000"
  memory = "48GiB"
}
card "hygon"     {
  model  = "K100-AI"
  memory = "64GiB"
}
card "cambricon" {
  model  = "MLU370-X8"
  memory = "48GiB"
}
card "biren"     {
  model  = "BR104P"
  memory = "32GiB"
}
card "ascend"    {
  model  = "910B3"
  memory = "64GiB"
}
card "kunlunxin" {
  model  = "P800"
  memory = "96GiB"
}
card "amd"       {
  model  = "MI300X"
  memory = "192GiB"
}
`

const simCards = 10

// suite is one cluster with what the scenarios need.
type suite struct {
	*cluster.Cluster
	t         *testing.T
	probe     string // static programs
	inference string
	others    bool // tasks of other drivers run, which take over no marks: those stay for a minute
}

// Every real Nomad that the suite wants to meet. Others found on PATH join.
var wantedNomads = []string{"nomad", "nomad-1.6"}

func TestSuite(t *testing.T) {
	programs := t.TempDir()
	probe := cluster.Static(t, programs, "e2e/probe")
	inference := cluster.Static(t, programs, "cmd/heteroflow-sim-inference")
	docker := cluster.Docker()
	if docker != "" {
		cluster.Image(t, docker, "heteroflow/probe:e2e", probe)
		cluster.Image(t, docker, "heteroflow/probe-all:e2e", probe, "ENV NVIDIA_VISIBLE_DEVICES=all")
		for _, tag := range []string{"dev", "nvidia", "ascend"} {
			cluster.Image(t, docker, "heteroflow/sim-inference:"+tag, inference, "ENV FLAVOUR="+tag)
		}
	}
	consul, err := exec.LookPath("consul")
	if err != nil {
		consul = ""
	}
	run := func(t *testing.T, o cluster.Options) {
		o.Sim, o.Docker, o.Consul = simNode, docker, consul
		s := &suite{Cluster: cluster.Start(t, o), t: t, probe: probe, inference: inference}
		s.awaitCards(simCards)
		for _, sc := range scenarios {
			t.Run(sc.name, func(t *testing.T) {
				if reason := sc.needs(o); reason != "" {
					t.Skip(reason)
				}
				in := &suite{Cluster: s.For(t), t: t, probe: probe, inference: inference}
				sc.run(in)
				if !t.Failed() {
					in.allGivenBack()
				}
			})
		}
	}
	t.Run("embedded", func(t *testing.T) { run(t, cluster.Options{}) })
	found := cluster.RealNomads()
	names := slices.Clone(wantedNomads)
	for name := range found {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	sort.Strings(names[len(wantedNomads):])
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			if found[name] == "" {
				t.Skipf("no %s on PATH: the suite met no such real Nomad", name)
			}
			run(t, cluster.Options{Nomad: found[name], Database: postgres.SchemaURL(t)})
		})
	}
}

type scenario struct {
	name string
	run  func(*suite)
	want func(cluster.Options) string // a reason to skip, or nothing
}

func (sc scenario) needs(o cluster.Options) string {
	if sc.want == nil {
		return ""
	}
	return sc.want(o)
}

func needsDocker(o cluster.Options) string {
	if o.Docker == "" {
		return "no Docker daemon answers: set HETEROFLOW_TEST_DOCKER, or start one"
	}
	return ""
}

var scenarios = []scenario{
	{name: "shares of one card", run: sharesOfOneCard},
	{name: "nomad CLI", run: nomadCLI},
	{name: "visible cards", run: visibleCards},
	{name: "visible cards in containers", run: visibleCardsInContainers, want: needsDocker},
	{name: "jobspecs", run: jobspecExamples},
	{name: "two brands", run: twoBrands, want: needsDocker},
	{name: "inference", run: inferenceService},
	{name: "scaled to zero", run: scaledToZero},
	{name: "bad input", run: badInput},
	{name: "kill -9", run: killNine},
}

// ---- what scenarios are made of

// awaitCards waits until the placement service sees n cards.
func (s *suite) awaitCards(n int) {
	s.t.Helper()
	s.Eventually(90*time.Second, fmt.Sprintf("%d cards are seen", n), func() error {
		if !s.Agent.Alive() {
			s.t.Fatalf("the agent has ended:\n%s", s.Agent.Output())
		}
		if cards := s.gpus(); len(cards) != n {
			return fmt.Errorf("%d cards", len(cards))
		}
		return nil
	})
}

func (s *suite) gpus() []client.GPU {
	s.t.Helper()
	var list client.GPUList
	if err := s.API(http.MethodGet, "/api/v1/gpus", nil, &list); err != nil {
		s.t.Logf("list cards: %v", err)
	}
	return list.Items
}

// probeJob is a job with one task that runs the probe as a process.
type probeJob struct {
	id, kind string // type: service or batch
	args     []string
	ask      string // lines of the accelerator block; empty for none
	count    int
	extra    string // further lines of the task
	config   string // further lines of the task's config
	image    string // run in this image in place of the process runtime
}

func (s *suite) hcl(j probeJob) string {
	if j.kind == "" {
		j.kind = "service"
	}
	if j.count == 0 {
		j.count = 1
	}
	accelerator := ""
	if j.ask != "" {
		accelerator = "accelerator {\n" + j.ask + "\n}"
	}
	where := fmt.Sprintf("runtime = \"process\"\ncommand = %q", s.probe)
	if j.image != "" {
		where = fmt.Sprintf("image = %q\ncommand = %q", j.image, "/probe")
	}
	args, err := json.Marshal(j.args)
	if err != nil {
		s.t.Fatal(err)
	}
	return fmt.Sprintf(`
job %q {
  type = %q
  group "g" {
    count = %d
    restart {
      attempts = 0
      mode     = "fail"
    }
    reschedule {
      attempts  = 0
      unlimited = false
    }
    task "probe" {
      driver       = "heteroflow"
      kill_timeout = "2s"
      config {
        %s
        args = %s
        %s
        %s
      }
      %s
      resources {
        cpu    = 50
        memory = 32
      }
    }
  }
}
`, j.id, j.kind, j.count, where, args, j.config, accelerator, j.extra)
}

func (s *suite) file(name, text string) string {
	s.t.Helper()
	path := filepath.Join(s.t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	return path
}

// submit runs the job with our CLI and returns what it said and its exit code.
func (s *suite) submit(j probeJob) (output string, code int) {
	s.t.Helper()
	out, errs, code := s.CLI("heteroflow", "job", "run", s.file(j.id+".nomad.hcl", s.hcl(j)))
	return out + errs, code
}

func (s *suite) mustSubmit(j probeJob) {
	s.t.Helper()
	if out, code := s.submit(j); code != 0 {
		// A card that must change its form first makes the job wait for a moment: exit 2.
		if code != 2 {
			s.t.Fatalf("run %s: exit %d\n%s", j.id, code, out)
		}
	}
}

func (s *suite) job(id string) client.Job {
	s.t.Helper()
	var j client.Job
	if err := s.API(http.MethodGet, "/api/v1/jobs/"+url.PathEscape(id), nil, &j); err != nil {
		s.t.Fatalf("get job %s: %v", id, err)
	}
	return j
}

func (s *suite) allocs(job string) []api.AllocationListStub {
	s.t.Helper()
	var list []api.AllocationListStub
	if err := s.Nomads(http.MethodGet, "/v1/job/"+url.PathEscape(job)+"/allocations", nil, &list); err != nil {
		s.t.Logf("list allocations of %s: %v", job, err)
	}
	return list
}

func (s *suite) withStatus(job, status string) []api.AllocationListStub {
	s.t.Helper()
	var list []api.AllocationListStub
	for _, a := range s.allocs(job) {
		if a.ClientStatus == status {
			list = append(list, a)
		}
	}
	return list
}

// awaitAllocs waits until the job has n allocations of a client status.
func (s *suite) awaitAllocs(job, status string, n int) []api.AllocationListStub {
	s.t.Helper()
	var list []api.AllocationListStub
	s.Eventually(90*time.Second, fmt.Sprintf("%s has %d allocations %s", job, n, status), func() error {
		if list = s.withStatus(job, status); len(list) != n {
			return fmt.Errorf("%d are; %s", len(list), s.describe(job))
		}
		return nil
	})
	return list
}

// describe says all that is known of a job that does not do what it should.
func (s *suite) describe(job string) string {
	var b strings.Builder
	var j client.Job
	if err := s.API(http.MethodGet, "/api/v1/jobs/"+url.PathEscape(job), nil, &j); err == nil {
		fmt.Fprintf(&b, "job %s", j.State)
		if j.Reason != nil {
			fmt.Fprintf(&b, " (%s)", *j.Reason)
		}
	}
	for _, a := range s.allocs(job) {
		fmt.Fprintf(&b, "; alloc %s %s %s", a.ID[:8], a.ClientStatus, a.ClientDescription)
		for name, state := range a.TaskStates {
			for _, e := range state.Events {
				fmt.Fprintf(&b, "; %s: %s", name, e.DisplayMessage)
			}
		}
	}
	return b.String()
}

func (s *suite) stop(job string) {
	s.t.Helper()
	if out, errs, code := s.CLI("heteroflow", "job", "stop", "-purge", job); code != 0 {
		s.t.Fatalf("stop %s: exit %d\n%s%s", job, code, out, errs)
	}
}

// log is the standard output of a job's task.
func (s *suite) log(alloc, task string) string {
	s.t.Helper()
	resp, err := http.Get(s.AgentURL + "/v1/client/fs/logs/" + alloc + "?task=" + task + "&type=stdout&plain=true&origin=start")
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	var b strings.Builder
	if _, err := copyAll(&b, resp.Body); err != nil {
		s.t.Fatal(err)
	}
	return b.String()
}

// env is the environment that a probe printed.
func (s *suite) env(alloc string) map[string]string {
	s.t.Helper()
	var env map[string]string
	s.Eventually(30*time.Second, "the probe printed its environment", func() error {
		line, _, _ := strings.Cut(s.log(alloc, "probe"), "\n")
		return json.Unmarshal([]byte(line), &env)
	})
	return env
}

// allGivenBack stops what is left and checks that nothing is held any more.
func (s *suite) allGivenBack() {
	s.t.Helper()
	s.StopJobs()
	s.Eventually(60*time.Second, "every card and reservation is given back", func() error {
		for _, card := range s.gpus() {
			if card.Memory != nil && card.Memory.UsedMiB != 0 || len(card.Jobs) != 0 {
				return fmt.Errorf("%s still has %v", card.UUID, card.Jobs)
			}
		}
		var list struct{ Items []client.Reservation }
		if err := s.API(http.MethodGet, "/api/v1/reservations", nil, &list); err != nil {
			return err
		}
		for _, r := range list.Items {
			if r.State != "released" && r.State != "expired" {
				return fmt.Errorf("reservation of %s is %s", r.JobID, r.State)
			}
		}
		leases, err := filepath.Glob(filepath.Join(s.Dir, "state", "leases", "*.json"))
		leases = slices.DeleteFunc(leases, func(path string) bool { return s.others && strings.HasSuffix(path, ".reserved.json") })
		if err != nil || len(leases) != 0 {
			return fmt.Errorf("leases on the node: %v %v", leases, err)
		}
		return nil
	})
}

package e2e

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/heteroflow/heteroflow/e2e/cluster"
	"github.com/heteroflow/heteroflow/internal/testkit/postgres"
)

// shareCase is one kind of share: a job that asks for it, what its tasks must see, and what the maker's tool must show.
type shareCase struct {
	backend, ask string
	// env are expressions that variables of a task must fit.
	env map[string]string
	// own are variables whose values no two tasks may have alike.
	own []string
	// thing begins what the tool shows, once for each task, or once for all of them.
	thing string
	once  bool
	// making is a call during which the driver is killed; empty where no tool makes the share.
	making string
	// image is true for shares that containers alone can have, nodes what such a container gets of /dev, as expressions.
	image bool
	nodes []string
}

// processShares are those that a process of the host can have.
var processShares = []shareCase{
	{
		backend: "mig", ask: "vendor = [\"nvidia\"]\nmemory = \"20GiB\"\nqos = \"gold\"", thing: "MIG ",
		env:    map[string]string{"CUDA_VISIBLE_DEVICES": "^MIG-", "NVIDIA_VISIBLE_DEVICES": "^MIG-", "HETEROFLOW_QOS": "^gold$"},
		own:    []string{"CUDA_VISIBLE_DEVICES"},
		making: "^nvidia-smi mig .*-cgi",
	},
	{
		backend: "mps", ask: "model = [\"L40S\"]\nmemory = \"10GiB\"\ncompute = 25\nqos = \"silver\"", thing: "MPS daemon", once: true,
		env: map[string]string{
			"CUDA_MPS_PIPE_DIRECTORY": "/shares/nvidia/mps/", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "^0=10240M$",
			"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "^25$", "HETEROFLOW_QOS": "^silver$",
		},
		making: "^nvidia-cuda-mps-control -d",
	},
	{
		backend: "smlu", ask: "vendor = [\"cambricon\"]\nmemory = \"4GiB\"\nqos = \"gold\"", thing: "instance hf",
		env:    map[string]string{"MLU_VISIBLE_DEVICES": "^[01]$", "HETEROFLOW_QOS": "^gold$"},
		making: "cambricon-smlu create-instance",
	},
	{
		backend: "bronze", ask: "vendor = [\"kunlunxin\"]\nmemory = \"10GiB\"\nqos = \"bronze\"",
		env: map[string]string{"XPU_VISIBLE_DEVICES": "^[0-7]$", "HETEROFLOW_QOS": "^bronze$"},
	},
}

// containerShares are those that only a container can have.
var containerShares = []shareCase{
	{
		backend: "hami", ask: "model = [\"L40S\"]\nmemory = \"10GiB\"\ncompute = 25\nqos = \"silver\"",
		env:   map[string]string{"CUDA_DEVICE_MEMORY_LIMIT": "^10240m$", "CUDA_DEVICE_SM_LIMIT": "^25$", "HETEROFLOW_QOS": "^silver$"},
		nodes: []string{`^/dev/nvidia[12]:`},
	},
	{
		backend: "hami", ask: "vendor = [\"ascend\"]\nmemory = \"10GiB\"\ncompute = 25\nqos = \"silver\"",
		env:   map[string]string{"NPU_MEM_QUOTA": "^10240$", "NPU_PRIORITY": "^25$", "HETEROFLOW_QOS": "^silver$"},
		nodes: []string{`^/dev/davinci3:/dev/davinci3$`},
	},
	{
		backend: "vnpu", ask: "vendor = [\"ascend\"]\nmemory = \"16GiB\"\nqos = \"gold\"", thing: "vir05_1c_16g",
		env: map[string]string{"ASCEND_RUNTIME_OPTIONS": "^VIRTUAL$", "ASCEND_RT_VISIBLE_DEVICES": "^0$", "HETEROFLOW_QOS": "^gold$"},
		own: []string{"ASCEND_VISIBLE_DEVICES"}, nodes: []string{`^/dev/vdavinci\d+:/dev/davinci\d+$`}, making: "^npu-smi set -t create-vnpu",
	},
	{
		backend: "sgpu", ask: "vendor = [\"mthreads\"]\nmemory = \"8GiB\"\ncompute = 25\nqos = \"silver\"", thing: "hf",
		env: map[string]string{"MTHREADS_EXAMPLE": "^hf", "HETEROFLOW_QOS": "^silver$"}, own: []string{"MTHREADS_EXAMPLE"},
		nodes: []string{`^/dev/mtgpu\.\d:`, `^/dev/null:/dev/mtgpu\.part$`}, making: "mthreads-sgpu create",
	},
	{
		backend: "vxpu", ask: "vendor = [\"kunlunxin\"]\nmemory = \"24GiB\"\nqos = \"silver\"",
		env:   map[string]string{"CXPU_CONTAINER_MEMORY_LIMIT": "^25769803776$", "CXPU_VISIBLE_DEVICES": "^[0-7]$", "HETEROFLOW_QOS": "^silver$"},
		nodes: []string{`^/dev/xpu\d:/dev/xpu\d$`},
	},
	{
		backend: "hami", ask: "vendor = [\"amd\"]\nmemory = \"48GiB\"\ncompute = 25\nqos = \"silver\"",
		env: map[string]string{"HIP_DEVICE_MEMORY_LIMIT_0": "^49152m$", "HSA_CU_MASK": "^0:", "HETEROFLOW_QOS": "^silver$"}, own: []string{"HSA_CU_MASK"},
		nodes: []string{`^/dev/kfd:/dev/kfd$`},
	},
	{
		backend: "vdcu", ask: "vendor = [\"hygon\"]\nmemory = \"8GiB\"\ncompute = 25\nqos = \"silver\"",
		env:   map[string]string{"HIP_VISIBLE_DEVICES": "^0$", "HETEROFLOW_QOS": "^silver$"},
		nodes: []string{`^/dev/dri/card20\d:`, `^/dev/dri/renderD20\d:`, `^/dev/kfd:`, `^/dev/mkfd:`},
	},
}

// brand is the one that the share is asked of.
func (c shareCase) brand() string {
	if m := regexp.MustCompile(`vendor = \["(\w+)"\]`).FindStringSubmatch(c.ask); m != nil {
		return m[1]
	}
	return "nvidia"
}

// Cards of many brands whose makers' tools keep what they made, on every engine at once: shares are made, bounded and given
// back, whatever dies meanwhile.
func TestShares(t *testing.T) {
	programs := t.TempDir()
	probe, tool := cluster.Static(t, programs, "e2e/probe"), cluster.Static(t, programs, "e2e/faketool")
	docker := cluster.Docker()
	if docker != "" {
		cluster.Image(t, docker, "heteroflow/probe:e2e", probe)
		shareNodes(t)
	}
	kinds := slices.Clone(processShares)
	for _, c := range containerShares {
		if c.image = true; docker != "" && usable(t, docker, c) == "" {
			kinds = append(kinds, c)
		}
	}
	found := cluster.RealNomads()
	var engines sync.WaitGroup
	defer engines.Wait()
	for i, name := range append([]string{"embedded"}, wantedNomads...) {
		engines.Go(func() {
			t.Run(name, func(t *testing.T) {
				o := cluster.Options{Nomad: found[name], Docker: docker}
				if name != "embedded" {
					if o.Nomad == "" {
						t.Skipf("no %s on PATH: shares met no such real Nomad", name)
					}
					o.Database = postgres.SchemaURL(t)
				}
				b := newShareBox(t, tool, i)
				s := &suite{Cluster: cluster.Start(t, b.options(o)), t: t}
				s.probe = s.copyOf(probe) // processes are told apart by their file
				s.awaitCards(shareCards)
				s.totals(b)
				for _, c := range kinds {
					t.Run(c.brand()+" "+c.backend, func(t *testing.T) {
						in := &suite{Cluster: s.For(t), t: t, probe: s.probe}
						in.shareOf(b, c)
					})
				}
				for _, c := range containerShares {
					if why := usable(t, docker, c); why != "" {
						t.Run(c.brand()+" "+c.backend, func(t *testing.T) { t.Skip(why) })
					}
				}
			})
		})
	}
}

// totals tells tasks how much memory each card has.
func (s *suite) totals(b *shareBox) {
	s.t.Helper()
	totals := map[string]int64{}
	for _, card := range s.gpus() {
		if card.Memory != nil {
			totals[card.UUID] = card.Memory.TotalMiB
			b.totals = append(b.totals, cardTotal{card.UUID, card.Memory.TotalMiB})
		}
	}
	body, err := json.Marshal(totals)
	if err != nil {
		s.t.Fatal(err)
	}
	write(s.t, filepath.Join(b.claims, "totals"), string(body), 0o666)
}

// job has one task that claims what it was given.
func (b *shareBox) job(id string, c shareCase) probeJob {
	j := probeJob{id: id, ask: c.ask, args: []string{"own", "-claims", b.claims}}
	if c.image {
		j.image, j.config, j.args[2] = "heteroflow/probe:e2e", fmt.Sprintf("network_mode = \"none\"\nvolumes = [%q]", b.claims+":/claims"), "/claims"
	}
	return j
}

// shareOf has two tasks share a card, and a third meet the death of the driver.
func (s *suite) shareOf(b *shareBox, c shareCase) {
	s.t.Helper()
	name := c.brand() + "-" + c.backend
	tasks := []string{name + "-a", name + "-b"}
	var envs []map[string]string
	for _, id := range tasks {
		s.mustSubmit(b.job(id, c))
		alloc := s.awaitAllocs(id, "running", 1)[0]
		envs = append(envs, s.env(alloc.ID))
		s.madeBy(c.backend, alloc.ID)
		if c.image {
			s.nodesOf(alloc.ID, c.nodes)
		}
	}
	c.check(s.t, envs)
	c.count(s, b, len(tasks))
	groups := s.healthyGroups()
	s.stop(tasks[0])
	s.awaitAllocs(tasks[0], "running", 0)
	c.count(s, b, 1)
	if now := s.withStatus(tasks[1], "running"); len(now) != 1 {
		s.t.Errorf("the neighbour does not run on: %s", s.describe(tasks[1]))
	}
	s.stop(tasks[1])
	s.awaitAllocs(tasks[1], "running", 0)
	s.sharesGone(b, 30*time.Second)
	if now := s.healthyGroups(); !mapsEqual(groups, now) {
		s.t.Errorf("the node offered %v with shares, and %v without", groups, now)
	}
	if c.making != "" {
		s.driverDiesMaking(b, c)
	}
	s.allGivenBack()
}

func mapsEqual(a, b map[string]int) bool {
	return fmt.Sprint(a) == fmt.Sprint(b) // maps are printed in the order of their keys
}

// madeBy checks that the ledger says who made the share of an allocation.
func (s *suite) madeBy(backend, alloc string) {
	s.t.Helper()
	entries, err := s.ledger()
	if err != nil {
		s.t.Fatal(err)
	}
	at := slices.IndexFunc(entries, func(e entry) bool { return e.Ask.AllocID == alloc })
	if at < 0 || entries[at].Backend != backend || entries[at].State != "confirmed" {
		s.t.Errorf("want a confirmed share by %s of allocation %s, the ledger has %+v", backend, alloc, entries)
	}
}

// check holds the environments of tasks against what they must be.
func (c shareCase) check(t *testing.T, envs []map[string]string) {
	t.Helper()
	for i, env := range envs {
		for name, want := range c.env {
			if !regexp.MustCompile(want).MatchString(env[name]) {
				t.Errorf("task %d: %s=%q, want %s", i, name, env[name], want)
			}
		}
		if env["HETEROFLOW_CARDS"] == "" || env["HETEROFLOW_CARDS"] != envs[0]["HETEROFLOW_CARDS"] {
			t.Errorf("task %d has card %q, want %q, which has room for both", i, env["HETEROFLOW_CARDS"], envs[0]["HETEROFLOW_CARDS"])
		}
		for _, name := range c.own {
			if i > 0 && env[name] == envs[0][name] {
				t.Errorf("two tasks have %s=%q", name, env[name])
			}
		}
	}
}

// count waits until the tool shows what so many tasks have.
func (c shareCase) count(s *suite, b *shareBox, tasks int) {
	s.t.Helper()
	want := tasks
	if c.once {
		want = 1
	}
	if c.thing == "" {
		want = 0
	}
	s.Eventually(20*time.Second, fmt.Sprintf("the tool has what %d tasks have", tasks), func() error {
		if got := b.thingsLike(s.t, c.thing); len(got) != want || c.thing == "" {
			if c.thing == "" && len(got) == 0 {
				return nil
			}
			return fmt.Errorf("want %d of %q, got %q", want, c.thing, b.things(s.t))
		}
		return nil
	})
}

// driverDiesMaking kills the driver when its tool has just made a share, before it could note that.
func (s *suite) driverDiesMaking(b *shareBox, c shareCase) {
	s.t.Helper()
	id := c.brand() + "-" + c.backend + "-dies"
	b.fault(s.t, "kill-after", 0, c.making)
	s.mustSubmit(b.job(id, c))
	s.Eventually(60*time.Second, "the driver dies while it makes a share", b.faultHappened)
	s.Eventually(60*time.Second, "the task was tried again, or has failed", func() error {
		if len(s.withStatus(id, "running"))+len(s.withStatus(id, "failed")) == 0 {
			return fmt.Errorf("%s", s.describe(id))
		}
		return nil
	})
	s.t.Logf("after the driver's death: %s", strings.TrimSpace(s.describe(id)))
	s.stop(id)
	s.awaitAllocs(id, "running", 0)
	s.sharesGone(b, 90*time.Second)
}

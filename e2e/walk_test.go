package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/client"
	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/e2e/cluster"
	"github.com/heteroflow/heteroflow/internal/grant"
	"github.com/heteroflow/heteroflow/internal/testkit/postgres"
)

// A walk is so many steps, drawn by its seed alone.
const walkSteps = 6

// walkPause is how long at most is waited after a step, so that the next meets what it began at any point.
const walkPause = 500 * time.Millisecond

// calmWithin is how long everything may take to come to rest. Processes that died are started again within seconds, and
// leftovers are looked for as often; a machine that does much else takes longer for all of it.
const calmWithin = 2 * time.Minute

// seeds are the first and the number of the walks on each engine: HETEROFLOW_E2E_SEED and HETEROFLOW_E2E_WALKS.
func seeds() (first, n int) {
	number := func(name string, otherwise int) int {
		if n, err := strconv.Atoi(os.Getenv(name)); err == nil && n > 0 {
			return n
		}
		return otherwise
	}
	usual := 3
	if os.Getenv("HETEROFLOW_E2E_LONG") != "" {
		usual = 1000
	}
	return number("HETEROFLOW_E2E_SEED", 1), number("HETEROFLOW_E2E_WALKS", usual)
}

// step is what is done at one moment of a walk.
type step struct {
	do    string
	kind  int // of share, for begin
	which int // one of the walk's jobs, for end; calls before a fault
	both  bool
	fault string
	pause time.Duration // afterwards
	calm  bool          // afterwards, it is waited until nothing is under way, and looked at what there is
}

// The steps, as often as they stand here.
var walkSteppers = []struct {
	do    string
	often int
}{
	{"begin", 38},
	{"end", 16},
	{"kill the driver", 8},
	{"kill the device plugin", 6},
	{"kill the agent", 6},
	{"kill MPS daemons", 6},
	{"kill Docker", 8},
	{"fault", 12},
}

// walkOf is the walk of a seed.
func walkOf(seed, kinds int) []step {
	rng := rand.New(rand.NewPCG(uint64(seed), 4))
	var steps []step
	for i := range walkSteps {
		at := rng.IntN(100)
		s := step{kind: rng.IntN(kinds), which: rng.IntN(5), both: rng.IntN(3) == 0, fault: []string{"fail", "fail-after", "kill", "kill-after"}[rng.IntN(4)]}
		s.pause, s.calm = time.Duration(rng.Int64N(int64(walkPause))), rng.IntN(5) == 0
		for _, w := range walkSteppers {
			if s.do = w.do; at < w.often || i == 0 {
				break
			}
			at -= w.often
		}
		steps = append(steps, s)
	}
	return steps
}

// Shares come and go on every engine, as processes and in containers, while the driver, the device plugin, the agent, the
// Docker daemon and MPS daemons are killed and makers' tools fail or die at any call. At no time has anything two owners, and
// whenever all has come to rest there is nothing that no task has: no container, no process, no part of a card, no daemon, no
// entry of the ledger, no lease.
func TestWalks(t *testing.T) {
	programs := t.TempDir()
	probe, tool := cluster.Static(t, programs, "e2e/probe"), cluster.Static(t, programs, "e2e/faketool")
	found := cluster.RealNomads()
	for i, name := range append([]string{"embedded"}, wantedNomads...) {
		t.Run(name, func(t *testing.T) {
			o := cluster.Options{Nomad: found[name]}
			if name != "embedded" {
				if o.Nomad == "" {
					t.Skipf("no %s on PATH: walks met no such real Nomad", name)
				}
				o.Database = postgres.SchemaURL(t)
			}
			w := newWalker(t, o, probe, tool, i)
			first, n := seeds()
			begun := time.Now()
			for seed := first; seed < first+n; seed++ {
				w.walk(seed)
			}
			w.allGivenBack()
			w.exitsAreKept()
			w.clientWiped()
			t.Logf("walks %d to %d held, in %s", first, first+n-1, time.Since(begun).Round(time.Second))
		})
	}
}

// A walker walks at random through what may happen to shares.
type walker struct {
	*suite
	b      *shareBox
	daemon *cluster.Daemon // nil without
	kinds  []shareCase
	jobs   []map[string]any // as JSON, by kind

	seed    int
	mine    []string // jobs of this walk, those that were stopped too
	stopped map[string]bool
	said    []string // steps so far
	// orphaned is set when a plugin was killed since the agent was started.
	orphaned bool
	seen     time.Time
}

func newWalker(t *testing.T, o cluster.Options, probe, tool string, n int) *walker {
	t.Helper()
	w := &walker{kinds: slices.Clone(processShares)}
	daemon, err := cluster.StartDaemon(t, "--add-runtime", "xpu=runc")
	switch {
	case errors.Is(err, cluster.ErrNoDaemon):
		t.Logf("walks without containers: %v", err)
	case err != nil:
		t.Fatal(err)
	default:
		w.daemon, o.Docker = daemon, daemon.Host
		cluster.Image(t, o.Docker, "heteroflow/probe:e2e", probe)
		shareNodes(t)
		for _, c := range containerShares {
			c.image = true
			w.kinds = append(w.kinds, c)
		}
	}
	w.b = newShareBox(t, tool, n)
	o = w.b.options(o)
	// As often as it can be, so that a walk need not wait long for the end.
	o.Driver = strings.Replace(o.Driver, `orphan_after = "20s"`, "orphan_after = \"5s\"\n    reconcile_every = \"2s\"", 1)
	o.Period = "1s"
	w.suite = &suite{Cluster: cluster.Start(t, o), t: t, others: true}
	w.probe = w.copyOf(probe) // processes are told apart by their file
	w.awaitCards(shareCards)
	w.totals(w.b)
	for _, c := range w.kinds {
		var job map[string]any
		in := map[string]any{"JobHCL": w.hcl(w.b.job("walk", c)), "Canonicalize": true}
		if err := w.API(http.MethodPost, "/v1/jobs/parse", in, &job); err != nil {
			t.Fatal(err)
		}
		w.jobs = append(w.jobs, job)
	}
	return w
}

func (w *walker) walk(seed int) {
	w.t.Helper()
	w.seed, w.mine, w.stopped, w.said = seed, nil, map[string]bool{}, nil
	begun := time.Now()
	defer func() {
		if w.t.Failed() {
			w.t.Logf("walk %d was: %s\nagain: HETEROFLOW_E2E_SEED=%d HETEROFLOW_E2E_WALKS=1 go test -run '%s$' ./e2e/", seed, strings.Join(w.said, ", "), seed, w.t.Name())
		}
	}()
	for _, s := range walkOf(seed, len(w.kinds)) {
		w.step(s)
		w.watch(s.pause)
		if s.calm {
			w.say("calm")
			w.calm()
		}
	}
	walked := time.Since(begun)
	w.settle()
	w.t.Logf("walk %d took %s and %s to settle: %s", seed, walked.Round(100*time.Millisecond), (time.Since(begun) - walked).Round(100*time.Millisecond), strings.Join(w.said, ", "))
}

func (w *walker) say(format string, args ...any) {
	w.said = append(w.said, fmt.Sprintf(format, args...))
}

func (w *walker) step(s step) {
	w.t.Helper()
	switch s.do {
	case "begin":
		w.begin(s.kind)
	case "end":
		w.end(s.which)
	case "kill the driver":
		w.say("%s", s.do)
		w.kill("heteroflow")
	case "kill the device plugin":
		w.say("%s", s.do)
		w.kill("heteroflow-device")
	case "kill the agent":
		w.say("%s", s.do)
		w.Agent.Kill()
		w.StartAgent()
		w.orphaned = false
	case "kill MPS daemons":
		w.killMPS()
	case "kill Docker":
		w.killDocker(s)
	case "fault":
		w.say("%s after %d calls", s.fault, s.which)
		w.b.fault(w.t, s.fault, s.which, `^(nvidia-smi mig|nvidia-cuda-mps-control|npu-smi (set|info -t info-vnpu)|/usr/local/libexec/)`)
	}
}

// begin submits a job. It may be refused while the agent is away: then it never was.
func (w *walker) begin(kind int) {
	w.t.Helper()
	id := fmt.Sprintf("walk-%d-%d", w.seed, len(w.mine))
	job := maps.Clone(w.jobs[kind])
	job["ID"], job["Name"] = id, id
	err := w.API(http.MethodPut, "/v1/jobs", map[string]any{"Job": job}, nil)
	w.say("begin %s by %s %s (%t)", id, w.kinds[kind].brand(), w.kinds[kind].backend, err == nil)
	w.mine = append(w.mine, id)
}

func (w *walker) end(which int) {
	w.t.Helper()
	var live []string
	for _, id := range w.mine {
		if !w.stopped[id] {
			live = append(live, id)
		}
	}
	if len(live) == 0 {
		return
	}
	id := live[which%len(live)]
	err := w.stopJob(id)
	w.say("end %s (%t)", id, err == nil)
}

// stopJob stops a job. What is not known is stopped.
func (w *walker) stopJob(id string) error {
	err := w.API(http.MethodDelete, "/v1/job/"+url.PathEscape(id), nil, nil)
	if err != nil && strings.Contains(err.Error(), ": 404: ") {
		err = nil
	}
	w.stopped[id] = w.stopped[id] || err == nil
	return err
}

// revive starts an agent that ended when a plugin was killed while it asked it what it is, as what runs a machine's services
// does. No other end of the agent is overlooked.
func (w *walker) revive() {
	w.t.Helper()
	if w.Agent.Alive() {
		return
	}
	if !w.orphaned {
		w.t.Fatalf("the agent has ended by itself:\n%s", w.Agent.Output())
	}
	w.say("start the agent again")
	w.orphaned = false
	w.StartAgent()
}

// kill kills a plugin where it runs: it may have been killed a moment ago.
func (w *walker) kill(file string) {
	w.t.Helper()
	w.orphaned = true
	for _, pid := range w.processes(filepath.Join(w.Dir, "plugins", file)) {
		args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err == nil && !strings.Contains(string(args), "supervise") {
			w.killPID(pid)
		}
	}
}

func (w *walker) killPID(pid int) {
	w.t.Helper()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		w.t.Errorf("kill %d: %v", pid, err)
	}
}

func (w *walker) killMPS() {
	w.t.Helper()
	daemons := w.b.thingsLike(w.t, "MPS daemon ")
	w.say("kill %d MPS daemons", len(daemons))
	for _, d := range daemons {
		pid, err := strconv.Atoi(strings.Fields(d)[2])
		if err != nil {
			w.t.Fatal(err)
		}
		w.killPID(pid)
	}
}

// killDocker kills the daemon. It comes back at once, or with the next calm; its containers live on or do not.
func (w *walker) killDocker(s step) {
	w.t.Helper()
	if w.daemon == nil {
		return
	}
	keep, later := s.which%2 == 0, s.fault == "kill"
	w.say("kill Docker (containerd too: %t, containers live on: %t, back later: %t)", s.both, keep, later)
	if w.daemon.Kill(s.both); !later {
		w.daemon.Start(keep)
	}
}

// watch looks for two owners, again and again for a while.
func (w *walker) watch(long time.Duration) {
	w.t.Helper()
	for until := time.Now().Add(long); ; time.Sleep(100 * time.Millisecond) {
		if err := w.owners(); err != nil {
			w.t.Fatal(err)
		}
		if time.Now().After(until) {
			return
		}
	}
}

// owners says whether something has two owners, or was taken from under a task that runs.
func (w *walker) owners() error {
	if body, err := os.ReadFile(filepath.Join(w.b.claims, "violations")); err == nil {
		return fmt.Errorf("two owners: %s", body)
	}
	entries, err := w.ledger()
	if err != nil {
		return err
	}
	used := map[string]int64{}
	for _, e := range entries {
		used[e.Ask.Card.UUID] += e.Ask.MemoryMiB
	}
	for _, card := range w.b.totals {
		if mib := used[card.uuid]; mib > card.mib {
			return fmt.Errorf("shares of %d MiB are noted of %s, which has %d", mib, card.uuid, card.mib)
		}
	}
	if err := w.partsAreThere(); err != nil {
		return err
	}
	return w.nothingOfOursOffered()
}

// partsAreThere checks that the MIG devices that running tasks claim are there.
func (w *walker) partsAreThere() error {
	for _, path := range w.claimed("part.MIG-*") {
		uuid := strings.TrimPrefix(filepath.Base(path), "part.")
		out, err := w.b.says("nvidia-smi", "-L")
		if err != nil {
			return err
		}
		if !strings.Contains(out, uuid) && locked(path) {
			return fmt.Errorf("a task runs on %s, which is not there:\n%s", uuid, out)
		}
	}
	return nil
}

// claimed are the claims that living tasks have. Files of others are removed, so that a look at them stays short.
func (w *walker) claimed(pattern string) []string {
	w.t.Helper()
	paths, err := filepath.Glob(filepath.Join(w.b.claims, pattern))
	if err != nil {
		w.t.Fatal(err)
	}
	return slices.DeleteFunc(paths, func(path string) bool { return !locked(path) })
}

// locked reports whether a process holds the lock of a file. Claims are made under a lock of their own, which is held here
// too: a look must not be taken for an owner. A file that nobody holds is removed.
func locked(path string) bool {
	all, err := os.OpenFile(filepath.Join(filepath.Dir(path), "lock"), os.O_CREATE|os.O_RDWR, 0o666)
	if err != nil {
		return false
	}
	defer all.Close() //nolint:errcheck // nothing was written
	if syscall.Flock(int(all.Fd()), syscall.LOCK_EX) != nil {
		return false
	}
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close() //nolint:errcheck // it was only locked
	if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		return true
	}
	os.Remove(path) //nolint:errcheck // it is tried again
	return false
}

// nothingOfOursOffered checks, once in two seconds, that no part that the driver made is offered as a card of its own.
func (w *walker) nothingOfOursOffered() error {
	if time.Since(w.seen) < 2*time.Second {
		return nil
	}
	w.seen = time.Now()
	groups, err := w.offered()
	if err != nil {
		return nil //nolint:nilerr // the agent is away for the moment
	}
	for _, g := range groups {
		if form := g.Attributes["form"]; form != nil && form.String() == "partition" {
			return fmt.Errorf("%s/%s/%s is offered, which the driver made", g.Vendor, g.Type, g.Name)
		}
	}
	return nil
}

// offered are the groups of devices of the node.
func (w *walker) offered() ([]*api.NodeDeviceResource, error) {
	var nodes []api.NodeListStub
	if err := w.Nomads(http.MethodGet, "/v1/nodes", nil, &nodes); err != nil {
		return nil, err
	}
	var groups []*api.NodeDeviceResource
	for _, stub := range nodes {
		var node api.Node
		if err := w.Nomads(http.MethodGet, "/v1/node/"+stub.ID, nil, &node); err != nil {
			return nil, err
		}
		if node.Status == api.NodeStatusReady && node.NodeResources != nil {
			groups = append(groups, node.NodeResources.Devices...)
		}
	}
	return groups, nil
}

// calm lets what is under way come to its end, and looks at what there is then.
func (w *walker) calm() {
	w.t.Helper()
	w.b.noFault(w.t)
	if w.daemon != nil {
		w.daemon.Await()
	}
	w.Eventually(calmWithin, "there is what running tasks have, and nothing else", func() error {
		w.revive()
		if err := w.owners(); err != nil {
			w.t.Fatal(err)
		}
		return w.atRest()
	})
}

// settle ends what runs and waits until nothing is left.
func (w *walker) settle() {
	w.t.Helper()
	w.b.noFault(w.t)
	w.Eventually(calmWithin, "every job is stopped", func() error {
		w.revive()
		var problems []error
		for _, id := range w.mine {
			if !w.stopped[id] {
				problems = append(problems, w.stopJob(id))
			}
		}
		return errors.Join(problems...)
	})
	w.calm()
	w.claimed("memory.*")
	if w.seed%10 == 0 { // what is over makes lists long
		if err := w.Nomads(http.MethodPut, "/v1/system/gc", nil, nil); err != nil {
			w.t.Log(err)
		}
	}
}

// atRest says what keeps the node from rest: what is under way, and what there is that no running task has.
func (w *walker) atRest() error {
	running := map[string]string{} // allocation → job
	for _, id := range w.mine {
		var list []api.AllocationListStub
		if err := w.Nomads(http.MethodGet, "/v1/job/"+url.PathEscape(id)+"/allocations?all=true", nil, &list); err != nil && !strings.Contains(err.Error(), ": 404: ") {
			return err
		}
		for _, a := range list {
			switch {
			case a.ClientStatus == api.AllocClientStatusRunning && a.DesiredStatus == api.AllocDesiredStatusRun && !w.stopped[id]:
				running[a.ID] = id
			case a.ClientStatus == api.AllocClientStatusRunning || a.ClientStatus == api.AllocClientStatusPending || a.ClientStatus == api.AllocClientStatusUnknown:
				return fmt.Errorf("allocation %s of %s is %s and shall %s", a.ID, id, a.ClientStatus, a.DesiredStatus)
			}
		}
	}
	entries, err := w.ledger()
	if err != nil {
		return err
	}
	noted := map[string]bool{}
	for _, e := range entries {
		if running[e.Ask.AllocID] == "" || e.State != "confirmed" {
			return fmt.Errorf("the ledger has a share of allocation %s that is %s", e.Ask.AllocID, e.State)
		}
		noted[e.Ask.AllocID] = true
	}
	for alloc, id := range running {
		if !noted[alloc] {
			return fmt.Errorf("allocation %s of %s runs without a share", alloc, id)
		}
	}
	leases, err := grant.Leases(filepath.Join(w.Dir, "state", "leases"))
	if err != nil {
		return err
	}
	for _, l := range leases {
		if running[l.AllocID] == "" {
			return fmt.Errorf("a lease is left of allocation %s", l.AllocID)
		}
	}
	if err := errors.Join(w.noProcessBut(running), w.noContainerBut(running), w.noThingBut(entries)); err != nil {
		return err
	}
	if len(running) > 0 {
		return nil
	}
	if err := w.nothingNoted(); err != nil {
		return err
	}
	return w.allOpen()
}

// noProcessBut checks that every task that runs as a process does, and nobody else's.
func (w *walker) noProcessBut(running map[string]string) error {
	got := map[string]int{}
	for _, pid := range w.processes(w.probe) {
		environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		if err != nil {
			continue // it has just ended
		}
		for pair := range strings.SplitSeq(string(environ), "\x00") {
			if alloc, ok := strings.CutPrefix(pair, "NOMAD_ALLOC_ID="); ok {
				got[alloc]++
			}
		}
	}
	for alloc, n := range got {
		if running[alloc] == "" || n > 1 {
			return fmt.Errorf("allocation %s has %d processes (%q)", alloc, n, running[alloc])
		}
	}
	return nil
}

// noContainerBut checks that no container is there but one of each allocation that runs.
func (w *walker) noContainerBut(running map[string]string) error {
	if w.daemon == nil {
		return nil
	}
	var list []container.Summary
	err := w.askDocker(func(ctx context.Context, docker *client.Client) (err error) {
		list, err = docker.ContainerList(ctx, container.ListOptions{All: true, Filters: filters.NewArgs(filters.Arg("label", "io.heteroflow.state_dir="+filepath.Join(w.Dir, "state")))})
		return err
	})
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	for _, c := range list {
		alloc := c.Labels["com.hashicorp.nomad.alloc_id"]
		if running[alloc] == "" || c.State != "running" || seen[alloc] {
			return fmt.Errorf("container %s of allocation %s is left, %s", c.ID[:12], alloc, c.Status)
		}
		seen[alloc] = true
	}
	return nil
}

// showing are how tools show what backends made: one thing for each share, or one for each card.
var showing = []struct {
	backend, thing string
	once           bool
}{
	{"mig", "MIG ", false},
	{"mps", "MPS daemon ", true},
	{"smlu", "instance hf", false},
	{"vnpu", "vir", false},
	{"sgpu", "hf", false},
}

// noThingBut checks that tools have made what the ledger says, and nothing else.
func (w *walker) noThingBut(entries []entry) error {
	things := w.b.things(w.t)
	left := slices.Clone(things)
	take := func(prefix string) (n int) {
		had := len(left)
		left = slices.DeleteFunc(left, func(thing string) bool { return strings.HasPrefix(thing, prefix) })
		return had - len(left)
	}
	for _, s := range showing {
		want, cards := 0, map[string]bool{}
		for _, e := range entries {
			if e.Backend == s.backend && !(s.once && cards[e.Ask.Card.UUID]) {
				want++
				cards[e.Ask.Card.UUID] = true
			}
		}
		if take(s.thing) != want {
			return fmt.Errorf("tools show %q for the shares %+v", things, entries)
		}
		if s.backend == "smlu" && want > 0 {
			take("profile of card ") // instances of one size have one together
		}
	}
	if len(left) > 0 {
		return fmt.Errorf("tools show %q, which no share has", left)
	}
	return nil
}

// allOpen checks that every card is offered again, and that the placement service holds none.
func (w *walker) allOpen() error {
	groups, err := w.offered()
	if err != nil {
		return err
	}
	for _, g := range groups {
		for _, i := range g.Instances {
			if !i.Healthy {
				return fmt.Errorf("%s/%s/%s is closed: %s", g.Vendor, g.Type, g.Name, i.HealthDescription)
			}
		}
	}
	seen := map[string]bool{} // a client that was wiped is another node, and its cards are those of two
	for _, card := range w.gpus() {
		seen[card.UUID] = true
		if len(card.Jobs) != 0 {
			return fmt.Errorf("%s still has %v", card.UUID, card.Jobs)
		}
	}
	if len(seen) != shareCards {
		return fmt.Errorf("%d cards are seen, not %d", len(seen), shareCards)
	}
	return nil
}

// exitsAreKept has tasks end while neither the agent nor Nomad's server is there to hear of it, and the driver is gone too: how
// they ended is told when all are back. The driver keeps it until Nomad asks, however long that is: see its tests.
func (w *walker) exitsAreKept() {
	w.t.Helper()
	w.seed, w.mine, w.stopped, w.said = 0, nil, map[string]bool{}, nil
	end := filepath.Join(w.b.claims, "end")
	jobs := []probeJob{{id: "exits", kind: "batch", args: []string{"exit", "-code", "7", "-after", end}}}
	if w.daemon != nil {
		jobs = append(jobs, probeJob{
			id: "exits-in-a-container", kind: "batch", image: "heteroflow/probe:e2e", args: []string{"exit", "-code", "8", "-after", "/claims/end"},
			config: fmt.Sprintf("network_mode = \"none\"\nvolumes = [%q]", w.b.claims+":/claims"),
		})
	}
	for _, j := range jobs {
		w.mustSubmit(j)
		w.awaitAllocs(j.id, api.AllocClientStatusRunning, 1)
	}
	if w.NomadServer != nil {
		w.NomadServer.Kill()
	}
	w.Agent.Kill()
	w.kill("heteroflow")
	write(w.t, end, "", 0o644)
	w.Eventually(time.Minute, "the tasks have ended", func() error {
		var running []container.Summary
		var err error
		if w.daemon != nil {
			err = w.askDocker(func(ctx context.Context, docker *client.Client) (err error) {
				running, err = docker.ContainerList(ctx, container.ListOptions{Filters: filters.NewArgs(filters.Arg("label", "io.heteroflow.state_dir="+filepath.Join(w.Dir, "state")))})
				return err
			})
		}
		if n := len(w.processes(w.probe)) + len(running); err == nil && n > 0 {
			err = fmt.Errorf("%d run", n)
		}
		return err
	})
	w.StartAgent()
	if w.NomadServer != nil {
		w.StartNomadServer()
	}
	w.Eventually(calmWithin, "the engine answers", func() error {
		_, err := w.offered()
		return err
	})
	for i, j := range jobs {
		want := fmt.Sprintf("Exit Code: %d", 7+i)
		w.Eventually(calmWithin, j.id+" is told with "+want, func() error {
			if said := w.describe(j.id); !strings.Contains(said, want) {
				return errors.New(said)
			}
			return nil
		})
		w.stop(j.id)
	}
	w.allGivenBack()
}

// clientWiped has the agent lose all that its client knew, while tasks of every kind run. What is left of those is removed, and
// nothing is given to a second owner before it is; containers of others stay, also those of another driver of ours.
func (w *walker) clientWiped() {
	w.t.Helper()
	w.seed, w.mine, w.stopped, w.said = 0, nil, map[string]bool{}, nil
	for kind := range w.kinds {
		w.begin(kind)
	}
	w.calm()
	strangers := w.strangers()
	tasks, containers := w.processes(w.probe), w.ours()
	if len(tasks) == 0 || w.daemon != nil && len(containers) == 0 {
		w.t.Fatalf("%d processes and %d containers run, which is too few to lose any", len(tasks), len(containers))
	}
	w.WipeClient()
	w.Eventually(2*calmWithin, "what the client has lost is removed", func() error {
		if err := w.owners(); err != nil {
			w.t.Fatal(err)
		}
		now := w.processes(w.probe)
		for _, pid := range tasks {
			if slices.Contains(now, pid) {
				return fmt.Errorf("process %d runs on", pid)
			}
		}
		for _, id := range w.ours() {
			if slices.Contains(containers, id) {
				return fmt.Errorf("container %s is left", id)
			}
		}
		return nil
	})
	w.settle()
	w.allGivenBack()
	if now := w.strangers(); !slices.Equal(now, strangers) {
		w.t.Errorf("containers of others were %q, and are %q", strangers, now)
	}
}

// ours are the containers of this cluster.
func (w *walker) ours() []string {
	return w.containerIDs("io.heteroflow.state_dir=" + filepath.Join(w.Dir, "state"))
}

// strangers are the running containers of others, which are made at the first call: one without a word of us, and one of
// another driver of ours on the same daemon.
func (w *walker) strangers() []string {
	w.t.Helper()
	if w.daemon == nil {
		return nil
	}
	if ids := w.containerIDs("e2e.stranger"); len(ids) > 0 {
		return ids
	}
	err := w.askDocker(func(ctx context.Context, docker *client.Client) error {
		for _, labels := range []map[string]string{
			{"e2e.stranger": ""},
			{"e2e.stranger": "", "io.heteroflow.task_id": "another/task/1", "io.heteroflow.state_dir": "/var/lib/another"},
		} {
			made, err := docker.ContainerCreate(ctx, &container.Config{Image: "heteroflow/probe:e2e", Cmd: []string{"/probe", "hold"}, Labels: labels}, &container.HostConfig{NetworkMode: "none"}, nil, nil, "")
			if err == nil {
				err = docker.ContainerStart(ctx, made.ID, container.StartOptions{})
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return w.containerIDs("e2e.stranger")
}

// containerIDs are the containers with a label, sorted.
func (w *walker) containerIDs(label string) (ids []string) {
	w.t.Helper()
	if w.daemon == nil {
		return nil
	}
	err := w.askDocker(func(ctx context.Context, docker *client.Client) error {
		list, err := docker.ContainerList(ctx, container.ListOptions{All: label != "e2e.stranger", Filters: filters.NewArgs(filters.Arg("label", label))})
		for _, c := range list {
			ids = append(ids, c.ID[:12])
		}
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	slices.Sort(ids)
	return ids
}

// askDocker has something asked of the daemon.
func (w *walker) askDocker(ask func(context.Context, *client.Client) error) error {
	docker, err := client.NewClientWithOpts(client.WithHost(w.Docker), client.WithAPIVersionNegotiation())
	if err != nil {
		return err
	}
	defer docker.Close() //nolint:errcheck // what was asked of it is done
	return ask(context.Background(), docker)
}

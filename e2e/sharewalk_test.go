package e2e

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/nomad/api"
)

// Steps of one walk, and how long at most is waited after each.
const (
	walkSteps = 12
	walkPause = 700 * time.Millisecond
)

// walks is how many walks are made, each from a seed of its own: one in the suite, HETEROFLOW_E2E_WALKS where that is set.
func walks() int {
	if n, err := strconv.Atoi(os.Getenv("HETEROFLOW_E2E_WALKS")); err == nil && n > 0 {
		return n
	}
	if os.Getenv("HETEROFLOW_E2E_LONG") != "" {
		return 60
	}
	return 1
}

// A sharer walks at random through what may happen to shares, and watches that no two tasks ever have the same.
type sharer struct {
	*suite
	b     *shareBox
	kinds []shareCase
	rng   *rand.Rand
	jobs  []string
	said  []string // steps so far
	seen  time.Time
}

// shareWalks makes the walks: jobs come and go while the driver, the device plugin, the agent and MPS daemons are killed, and
// tools fail or die at any call. At the end of each nothing is left.
func (s *suite) shareWalks(b *shareBox, kinds []shareCase) {
	s.t.Helper()
	for n := range walks() {
		seed := uint64(n + 1)
		w := &sharer{suite: s, b: b, kinds: kinds, rng: rand.New(rand.NewPCG(seed, uint64(len(s.t.Name()))))}
		begun := time.Now()
		for range walkSteps {
			w.step()
			w.watch(time.Duration(w.rng.Int64N(int64(walkPause))))
		}
		w.settle()
		s.t.Logf("walk %d took %s: %s", seed, time.Since(begun).Round(time.Second), strings.Join(w.said, ", "))
		if s.t.Failed() {
			return
		}
	}
}

func (w *sharer) say(format string, args ...any) {
	w.said = append(w.said, fmt.Sprintf(format, args...))
}

func (w *sharer) step() {
	w.t.Helper()
	switch at := w.rng.IntN(100); {
	case at < 45 || len(w.jobs) == 0:
		w.begin()
	case at < 60:
		w.end()
	case at < 70:
		w.say("kill the driver")
		w.kill("heteroflow")
	case at < 77:
		w.say("kill the device plugin")
		w.kill("heteroflow-device")
	case at < 84:
		w.say("kill the agent")
		w.Agent.Kill()
		w.StartAgent()
	case at < 90:
		w.killDaemon()
	default:
		kind := []string{"fail", "fail-after", "kill", "kill-after"}[w.rng.IntN(4)]
		before := w.rng.IntN(5)
		w.say("%s after %d calls", kind, before)
		w.b.fault(w.t, kind, before, `^(nvidia-smi mig|nvidia-cuda-mps-control|npu-smi (set|info -t info-vnpu)|/usr/local/libexec/)`)
	}
}

// begin submits a job. It may be refused while the agent is away: then it never was.
func (w *sharer) begin() {
	w.t.Helper()
	kind := w.kinds[w.rng.IntN(len(w.kinds))]
	id := fmt.Sprintf("walk-%d", len(w.said))
	job := w.b.job(id, kind)
	_, _, code := w.CLI("heteroflow", "job", "run", "-detach", w.file(id+".nomad.hcl", w.hcl(job)))
	w.say("%s by %s: %d", id, kind.backend, code)
	w.jobs = append(w.jobs, id)
}

func (w *sharer) end() {
	w.t.Helper()
	at := w.rng.IntN(len(w.jobs))
	id := w.jobs[at]
	w.jobs = append(w.jobs[:at], w.jobs[at+1:]...)
	_, _, code := w.CLI("heteroflow", "job", "stop", "-detach", id)
	w.say("stop %s: %d", id, code)
}

// kill kills a plugin where it runs: it may have been killed a moment ago.
func (w *sharer) kill(file string) {
	w.t.Helper()
	for _, pid := range w.processes(filepath.Join(w.Dir, "plugins", file)) {
		args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err == nil && !strings.Contains(string(args), "supervise") {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
				w.t.Error(err)
			}
		}
	}
}

func (w *sharer) killDaemon() {
	w.t.Helper()
	daemons := w.b.thingsLike(w.t, "MPS daemon ")
	w.say("kill %d MPS daemons", len(daemons))
	for _, d := range daemons {
		pid, err := strconv.Atoi(strings.Fields(d)[2])
		if err == nil {
			err = syscall.Kill(pid, syscall.SIGKILL)
		}
		if err != nil && !errors.Is(err, syscall.ESRCH) {
			w.t.Errorf("kill %q: %v", d, err)
		}
	}
}

// watch looks for two owners, again and again for a while.
func (w *sharer) watch(long time.Duration) {
	w.t.Helper()
	for until := time.Now().Add(long); ; time.Sleep(50 * time.Millisecond) {
		if err := w.owners(); err != nil {
			w.t.Fatalf("%v\nafter %s", err, strings.Join(w.said, ", "))
		}
		if time.Now().After(until) {
			return
		}
	}
}

// owners says whether something has two owners, or was taken from under a task that runs.
func (w *sharer) owners() error {
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
func (w *sharer) partsAreThere() error {
	for _, path := range w.held("part.MIG-*") {
		uuid := strings.TrimPrefix(filepath.Base(path), "part.")
		out, err := exec.Command(w.b.tool, w.b.state, "nvidia-smi", "-L").Output()
		if err != nil {
			return err
		}
		if !strings.Contains(string(out), uuid) && locked(path) {
			return fmt.Errorf("a task runs on %s, which is not there:\n%s", uuid, out)
		}
	}
	return nil
}

// held are the claims that living tasks have.
func (w *sharer) held(pattern string) []string {
	w.t.Helper()
	paths, err := filepath.Glob(filepath.Join(w.b.claims, pattern))
	if err != nil {
		w.t.Fatal(err)
	}
	var out []string
	for _, path := range paths {
		if locked(path) {
			out = append(out, path)
		}
	}
	return out
}

// locked reports whether a process holds the lock of a file. Claims are made under a lock of their own, which is held here
// too: a look must not be taken for an owner.
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
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil
}

// nothingOfOursOffered checks, once a second, that no part that the driver made is offered as a card of its own.
func (w *sharer) nothingOfOursOffered() error {
	if time.Since(w.seen) < time.Second {
		return nil
	}
	w.seen = time.Now()
	var nodes []api.NodeListStub
	if err := w.Nomads(http.MethodGet, "/v1/nodes", nil, &nodes); err != nil {
		return nil //nolint:nilerr // the agent is away for the moment
	}
	for _, stub := range nodes {
		var node api.Node
		if err := w.Nomads(http.MethodGet, "/v1/node/"+stub.ID, nil, &node); err != nil || node.NodeResources == nil {
			return nil //nolint:nilerr // as above
		}
		for _, g := range node.NodeResources.Devices {
			if form := g.Attributes["form"]; form != nil && form.String() == "partition" {
				return fmt.Errorf("%s/%s/%s is offered, which the driver made", g.Vendor, g.Type, g.Name)
			}
		}
	}
	return nil
}

// settle ends what runs and waits until nothing is left.
func (w *sharer) settle() {
	w.t.Helper()
	defer func() {
		if w.t.Failed() {
			w.t.Logf("the walk was %s", strings.Join(w.said, ", "))
		}
	}()
	w.b.noFault(w.t)
	for _, id := range w.jobs { // those that wait are not known to Nomad
		if _, errs, code := w.CLI("heteroflow", "job", "stop", "-detach", id); code != 0 && !strings.Contains(errs, "404") {
			w.t.Logf("stop %s: %d: %s", id, code, errs)
		}
	}
	w.StopJobs()
	w.watch(0)
	w.sharesGone(w.b, 100*time.Second) // a reconcile comes every minute
	w.Eventually(30*time.Second, "no process is left", func() error {
		if left := w.processes(w.probe); len(left) > 0 {
			return fmt.Errorf("processes %v", left)
		}
		return w.noContainers()
	})
	w.allGivenBack()
}

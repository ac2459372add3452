package driver

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/grant"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/driverpb"
	"github.com/heteroflow/heteroflow/task-driver/share"
	"github.com/heteroflow/heteroflow/task-driver/supervisor"
)

// withSlices gives a task slices of NVIDIA's card GPU-1.
func withSlices(t testing.TB, n int) func(*driverpb.TaskConfig) {
	return func(c *driverpb.TaskConfig) { c.DeviceEnv = reserve(t, slicesOf(accel.NVIDIA, "GPU-1", 0, n)) }
}

// parts are the sizes of the parts that cards are divided into.
func (r *rig) parts() []uint64 {
	var out []uint64
	for _, p := range r.cards.Parts() {
		out = append(out, p.MemoryMiB)
	}
	slices.Sort(out)
	return out
}

func (r *rig) entries() map[string]share.State {
	r.t.Helper()
	all, err := r.shares().Entries()
	if err != nil {
		r.t.Fatal(err)
	}
	out := map[string]share.State{}
	for _, e := range all {
		out[e.Ask.TaskID] = e.State
	}
	return out
}

func (r *rig) reconcile() {
	r.t.Helper()
	if err := r.shares().Reconcile(r.ctx, r.liveShares); err != nil {
		r.t.Errorf("reconcile: %v", err)
	}
}

func TestShares_LifeOfOne(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	events := r.listen()
	config := shell("env; touch told; exec sleep 1000")
	config["env"] = map[string]string{"SAMPLE_PART": "mine", "NVIDIA_VISIBLE_DEVICES": "all"}
	j := r.job(config, withSlices(t, 20))
	h := r.start(j)
	id := j.cfg.Id
	if got := r.parts(); !slices.Equal(got, []uint64{20480}) {
		t.Fatalf("parts: %v", got)
	}
	for _, want := range []string{
		"making a part of 20480 MiB of card GPU-1", "Shares ready: GPU-1: 20 GiB by sample",
	} {
		if got := <-events; got != want {
			t.Errorf("event %q, want %q", got, want)
		}
	}
	for i := range 3 {
		r.reconcile()
		if diff := cmp.Diff(map[string]share.State{id: share.Confirmed}, r.entries()); diff != "" || len(r.parts()) != 1 {
			t.Fatalf("look %d: ledger (-want +got):\n%s%v", i, diff, r.parts())
		}
		r.restart() // nobody has brought the task back yet
	}
	if err := r.Recover(r.ctx, h); err != nil {
		t.Fatal(err)
	}
	_, attrs, err := r.Inspect(r.ctx, id)
	if err != nil || attrs["shares"] != "GPU-1: 20 GiB by sample" {
		t.Errorf("inspect: %v, %v", attrs, err)
	}
	part := string(share.NewID(id, accel.NVIDIA, "GPU-1"))
	stdout, _, exit, err := r.Exec(r.ctx, id, []string{"/bin/sh", "-c", "until [ -e told ]; do sleep 0.01; done; echo $SAMPLE_PART $NVIDIA_VISIBLE_DEVICES $HETEROFLOW_QOS"}, 0)
	if want := part + " GPU-1 silver\n"; err != nil || exit.ExitCode != 0 || string(stdout) != want {
		t.Errorf("exec sees %q, want %q (%v, %v)", stdout, want, exit, err)
	}
	if err := r.Destroy(r.ctx, id, true); err != nil {
		t.Fatal(err)
	}
	if len(r.parts()) > 0 || len(r.entries()) > 0 {
		t.Errorf("left: %v, %v", r.parts(), r.entries())
	}
	if out := <-j.stdout; !strings.Contains(out, "SAMPLE_PART="+part+"\n") || !strings.Contains(out, "NVIDIA_VISIBLE_DEVICES=GPU-1\n") {
		t.Errorf("the job changed what its share needs:\n%s", out)
	}
}

// listen hands the texts of the task events to a test.
func (r *rig) listen() <-chan string {
	ch, stop := r.events.listen()
	r.t.Cleanup(stop)
	out := make(chan string, 64)
	go func() {
		for {
			select {
			case e := <-ch:
				out <- e.GetMessage()
			case <-r.ctx.Done():
				return
			}
		}
	}()
	return out
}

func TestShares_StateFolderWiped(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	j := r.job(shell("exec sleep 1000"), withSlices(t, 20))
	r.start(j)
	if err := os.RemoveAll(filepath.Join(r.state, "shares")); err != nil {
		t.Fatal(err)
	}
	r.reconcile() // the driver knows the task: the ledger is mended
	if diff := cmp.Diff(map[string]share.State{j.cfg.Id: share.Confirmed}, r.entries()); diff != "" || len(r.parts()) != 1 {
		t.Fatalf("ledger (-want +got):\n%s%v", diff, r.parts())
	}
	if err := os.RemoveAll(filepath.Join(r.state, "shares")); err != nil {
		t.Fatal(err)
	}
	r.restart()
	r.reconcile() // the task runs and nobody has brought it back
	if len(r.parts()) != 1 {
		t.Fatal("the share of a running task was removed")
	}
	if err := r.Destroy(r.ctx, j.cfg.Id, true); err != nil { // as the sweep does
		t.Fatal(err)
	}
	r.reconcile()
	if len(r.parts()) > 0 {
		t.Errorf("left: %v", r.parts())
	}
}

// TestShares_DriverDiesBeforeTheTaskRuns leaves a share whose task has neither a supervisor nor a container.
func TestShares_DriverDiesBeforeTheTaskRuns(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	cfg := r.taskConfig(shell("true"), withSlices(t, 20))
	p, _, err := r.plan(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.shares().Prepare(r.ctx, p.share.asks, func(string) {}); err != nil {
		t.Fatal(err)
	}
	r.restart()
	r.reconcile()
	if len(r.parts()) > 0 || len(r.entries()) > 0 {
		t.Errorf("left: %v, %v", r.parts(), r.entries())
	}
}

func TestShares_StartFails(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	for name, change := range map[string]func(*driverpb.TaskConfig){
		"the program is not there": func(c *driverpb.TaskConfig) {},
		"the second card is held": func(c *driverpb.TaskConfig) {
			c.DeviceEnv = reserve(t, slicesOf(accel.NVIDIA, "GPU-1", 0, 20), slicesOf(accel.NVIDIA, "GPU-2", 1, 79))
		},
	} {
		other := r.job(shell("exec sleep 1000"), func(c *driverpb.TaskConfig) {
			c.DeviceEnv = reserve(t, slicesOf(accel.NVIDIA, "GPU-2", 1, 20))
		})
		r.start(other)
		j := r.job(map[string]any{"runtime": "process", "command": "/no/such/program"}, withSlices(t, 20), change)
		if _, _, err := r.Start(r.ctx, j.cfg); err == nil {
			t.Errorf("%s: it starts", name)
		}
		if diff := cmp.Diff(map[string]share.State{other.cfg.Id: share.Confirmed}, r.entries()); diff != "" || len(r.parts()) != 1 {
			t.Errorf("%s: ledger (-want +got):\n%s%v", name, diff, r.parts())
		}
		if err := r.Destroy(r.ctx, other.cfg.Id, true); err != nil {
			t.Fatal(err)
		}
	}
}

// TestShares_CardGivenAnewBeforeItIsCleared starts a task on a card whose former task has ended and is not destroyed yet.
func TestShares_CardGivenAnewBeforeItIsCleared(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	first := r.job(shell("exec sleep 1000"), withSlices(t, 60))
	r.start(first)
	second := r.job(shell("exec sleep 1000"), withSlices(t, 60))
	_, _, err := r.Start(r.ctx, second.cfg)
	var occupied *share.OccupiedError
	if !errors.As(err, &occupied) {
		t.Fatalf("a card with two owners: %v", err)
	}
	if err := r.Stop(r.ctx, first.cfg.Id, 0, ""); err != nil {
		t.Fatal(err)
	}
	third := r.job(shell("exec sleep 1000"), withSlices(t, 60))
	r.start(third)
	if diff := cmp.Diff(map[string]share.State{third.cfg.Id: share.Confirmed}, r.entries()); diff != "" || len(r.parts()) != 1 {
		t.Errorf("ledger (-want +got):\n%s%v", diff, r.parts())
	}
	if err := r.Destroy(r.ctx, first.cfg.Id, false); err != nil || len(r.parts()) != 1 {
		t.Errorf("the first task's end took the third's share: %v, %v", err, r.parts())
	}
}

func TestShares_ReleaseIsRepeated(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	j := r.job(shell("exec sleep 1000"), withSlices(t, 20))
	r.start(j)
	broken := &brokenTool{Tool: r.cards, broken: true}
	r.useTool(broken)
	if err := r.Destroy(r.ctx, j.cfg.Id, true); !errors.Is(err, errSharesStay) {
		t.Fatalf("destroy: %v", err)
	}
	leases, err := grant.Leases(filepath.Join(r.state, "leases"))
	if err != nil || len(leases) != 1 {
		t.Errorf("the card counts as free: %v, %v", leases, err)
	}
	broken.broken = false
	r.retryDestroys(r.ctx)
	leases, err = grant.Leases(filepath.Join(r.state, "leases"))
	if err != nil || len(leases) > 0 || len(r.parts()) > 0 || len(r.entries()) > 0 {
		t.Errorf("left: %v, %v, %v (%v)", leases, r.parts(), r.entries(), err)
	}
}

// brokenTool fails while it is broken.
type brokenTool struct {
	share.Tool
	broken bool
}

func (b *brokenTool) Run(ctx context.Context, name string, args ...string) (share.Output, error) {
	if b.broken {
		return share.Output{Stderr: "in use by another client", ExitCode: 19}, nil
	}
	return b.Tool.Run(ctx, name, args...)
}

// useTool gives the running driver another tool.
func (r *rig) useTool(tool share.Tool) {
	r.t.Helper()
	r.tool = tool
	s, _ := r.current()
	m, err := r.newManager(s)
	if err != nil {
		r.t.Fatal(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.manager = m
}

func TestShares_Fingerprint(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	get := func(name string) string {
		return r.look(r.ctx).GetAttributes()["driver.heteroflow."+name].GetStringVal()
	}
	if got := get("share.nvidia.sample") + " " + get("share.nvidia"); got != "1 sample" {
		t.Errorf("attributes: %q", got)
	}
	r.shareLook.at = r.shareLook.at.Add(-probeEvery)
	r.useTool(noTool{})
	attrs := r.look(r.ctx).GetAttributes()
	for _, name := range []string{"share.nvidia.sample", "share.nvidia"} {
		if a, sent := attrs["driver.heteroflow."+name]; !sent || a.GetStringVal() != "" {
			t.Errorf("%s is not taken back: %v", name, a)
		}
	}
	if !strings.Contains(r.log.String(), "sharetool is not installed") {
		t.Error("the log does not say why")
	}
}

// noTool is a machine without tools.
type noTool struct{}

func (noTool) Run(context.Context, string, ...string) (share.Output, error) {
	return share.Output{}, errors.New("not there")
}
func (noTool) Look(string) (string, error) { return "", errors.New("not there") }

func TestShares_OveruseStopsTheTask(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	events := r.listen()
	j := r.job(shell("exec sleep 1000"))
	r.start(j)
	tasks := shareTasks{r.Driver}
	pids, err := tasks.PIDs(r.ctx, j.cfg.Id)
	if err != nil || len(pids) != 1 {
		t.Errorf("processes: %v, %v", pids, err)
	}
	tasks.Stop(j.cfg.Id, "card GPU-1: the task holds more than it was given")
	if text := <-events; !strings.Contains(text, "more than it was given") {
		t.Errorf("event %q", text)
	}
	if exit := r.wait(j.cfg.Id); exit.Signal != 15 {
		t.Errorf("exit: %v", exit)
	}
	if _, err := tasks.PIDs(r.ctx, "nobody"); err == nil {
		t.Error("processes of a task that is not there")
	}
	tasks.Tell("nobody", "hello")
}

func TestShares_InAContainer(t *testing.T) {
	t.Parallel()
	r, fake := dockerRig(t, nil)
	cfg := r.taskConfig(app("sleep"), withSlices(t, 20))
	cfg.StdoutPath, cfg.StderrPath = os.DevNull, os.DevNull
	h, _, err := r.Start(r.ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	pids, err := shareTasks{r.Driver}.PIDs(r.ctx, cfg.Id)
	if err != nil || !slices.Equal(pids, []int{4711, 4712}) {
		t.Errorf("processes: %v, %v", pids, err)
	}
	// The ledger is wiped and nobody brings the task back: its container runs, so that its share stays.
	r.restart()
	if err := os.RemoveAll(filepath.Join(r.state, "shares")); err != nil {
		t.Fatal(err)
	}
	r.reconcile()
	if len(r.parts()) != 1 {
		t.Error("the share of a running container was removed")
	}
	fake.Down() // what runs there is not known now
	r.reconcile()
	if len(r.parts()) != 1 {
		t.Error("the share was removed while the daemon did not answer")
	}
	fake.Up()
	if err := r.Recover(r.ctx, h); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]share.State{cfg.Id: share.Confirmed}, r.entries()); diff != "" {
		t.Errorf("ledger (-want +got):\n%s", diff)
	}
	if err := r.Destroy(r.ctx, cfg.Id, true); err != nil || len(r.parts()) > 0 {
		t.Errorf("left: %v, %v", r.parts(), err)
	}
}

func TestMayRun(t *testing.T) {
	t.Parallel()
	me := self()
	gone := me
	gone.Start++
	before := gone
	before.Boot = "another"
	for name, c := range map[string]struct {
		status supervisor.Status
		want   bool
	}{
		"its supervisor runs":      {supervisor.Status{Phase: supervisor.Running, Supervisor: me}, true},
		"its process runs":         {supervisor.Status{Phase: supervisor.Running, Supervisor: gone, Task: me}, true},
		"a container may":          {supervisor.Status{Phase: supervisor.Running, Supervisor: gone, Ref: "c1"}, true},
		"a container before boot":  {supervisor.Status{Phase: supervisor.Running, Supervisor: before, Ref: "c1"}, false},
		"a process that is gone":   {supervisor.Status{Phase: supervisor.Running, Supervisor: gone, Task: gone}, false},
		"it has ended":             {supervisor.Status{Phase: supervisor.Exited, Supervisor: me, Task: me}, false},
		"it was about to be begun": {supervisor.Status{Phase: supervisor.Starting, Supervisor: gone}, false},
	} {
		if got := mayRun(c.status); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
	if !makerRuns(makerOf(me)) || makerRuns(makerOf(gone)) || makerRuns("") || makerRuns("x") {
		t.Error("processes of the driver are not told apart")
	}
}

func TestAdmit_RequireGrant(t *testing.T) {
	t.Parallel()
	key := testKey(t)
	public := publicOf(key)
	cfg := taskOf(reserve(t, slicesOf(accel.NVIDIA, "GPU-1", 0, 20)))
	if _, err := admit(cfg, TaskConfig{}, public, true); !errors.Is(err, errGrantRequired) {
		t.Errorf("cards without a grant: %v", err)
	}
	if _, err := admit(taskOf(nil), TaskConfig{}, public, true); err != nil {
		t.Errorf("a task without cards: %v", err)
	}
	s, err := admit(cfg, TaskConfig{Grant: sign(t, key, granted())}, public, true)
	if err != nil || len(s.asks) != 1 || s.asks[0].MemoryMiB != 20480 || s.asks[0].ComputePct != 30 || s.asks[0].QoS != accel.Silver {
		t.Errorf("cards with a grant: %+v, %v", s.asks, err)
	}
	_, err = Config{RequireGrant: true}.settle()
	if err == nil || !strings.Contains(err.Error(), "require_grant: it needs grant_public_key") {
		t.Errorf("config: %v", err)
	}
}

func TestAdmit_Reservations(t *testing.T) {
	t.Parallel()
	two := whole(accel.NVIDIA, "GPU-1")
	two.Instances = []string{"x"}
	for name, c := range map[string]struct {
		reservations []grant.Reservation
		want         string
	}{
		"more than the instances": {[]grant.Reservation{func() grant.Reservation {
			r := slicesOf(accel.NVIDIA, "GPU-1", 0, 20)
			r.Cards[0].Units = 30
			return r
		}()}, "20 instances were given, the cards behind them count 30"},
		"an instance twice": {[]grant.Reservation{slicesOf(accel.NVIDIA, "GPU-1", 0, 1), slicesOf(accel.NVIDIA, "GPU-1", 0, 2)}, "is reserved twice"},
		"two forms":         {[]grant.Reservation{slicesOf(accel.NVIDIA, "GPU-1", 0, 1), two}, "reserved as"},
		"no card": {[]grant.Reservation{func() grant.Reservation {
			r := slicesOf(accel.NVIDIA, "", 0, 1)
			return r
		}()}, `card "" is reserved`},
	} {
		_, err := admit(taskOf(reserve(t, c.reservations...)), TaskConfig{}, nil, false)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestConfig_Shares(t *testing.T) {
	t.Parallel()
	s, err := Config{Share: map[string][]string{"nvidia": {"sample"}, "amd": nil}, Bronze: &Bronze{Overuse: "stop"}}.settle()
	if err != nil || !cmp.Equal(s.order, share.Order{accel.NVIDIA: {"sample"}}) || s.overuse != "stop" {
		t.Errorf("settings: %v, %v, %v", s.order, s.overuse, err)
	}
	if _, err := (Config{Bronze: &Bronze{Overuse: "kill"}}).settle(); err == nil || !strings.Contains(err.Error(), "bronze.overuse: \"kill\" is not known") {
		t.Errorf("config: %v", err)
	}
	r := newRig(t, map[string]any{"share": map[string]any{"nvidia": []string{"sample"}}, "bronze": map[string]any{"overuse": "stop"}})
	if s, _ := r.current(); !cmp.Equal(s.order, share.Order{accel.NVIDIA: {"sample"}}) || s.overuse != "stop" {
		t.Errorf("from the agent's config: %v, %v", s.order, s.overuse)
	}
	bad := s
	bad.order = share.Order{accel.NVIDIA: {"mpss"}}
	if _, err := r.newManager(bad); err == nil || !strings.Contains(err.Error(), `share.nvidia: "mpss" is not known: write some of sample`) {
		t.Errorf("an unknown backend: %v", err)
	}
}

package submit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"pgregory.net/rapid"

	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/nomadapi"
	"github.com/heteroflow/heteroflow/internal/store"
	"github.com/heteroflow/heteroflow/placement-service/watch"
)

// errCrash is what every call ends with once the process of the model has died.
var errCrash = errors.New("crashed")

// fuse burns down with each call of the process under test; then the process is dead until it is started again.
type fuse struct {
	left  int  // calls; below 0 it does not burn
	after bool // the last call takes effect, and nobody hears of it
}

// call does what the call is to do, unless the process is dead.
func (f *fuse) call(do func() error) error {
	switch {
	case f.left < 0:
		return do()
	case f.left == 0:
		return errCrash
	}
	if f.left--; f.left > 0 {
		return do()
	}
	if f.after {
		return errors.Join(do(), errCrash)
	}
	return errCrash
}

// play is a cluster of one pool with two victims and one that asks for the room of both, its Nomad and its queue. Where
// the victims move there is a spare pool that has room for them, and a job that would like to have it.
type play struct {
	fuse
	moves   bool
	calm    bool // nothing happened but crashes
	db      *store.Store
	clock   *clock.Fake
	ns      string
	jobs    map[string]*played
	stuck   map[string]bool // whose allocations do not end
	races   map[string]bool // jobs that their users send again, by another instance, right after they were read
	signals int
}

// errOther is Nomad's answer to a registration of a job that was sent again meanwhile.
var errOther = errors.New("another version came in between")

// played is a job in the model's Nomad.
type played struct {
	tree  Tree
	index int64
	runs  int            // allocations that run and are wanted
	at    string         // the node on which they do
	ends  map[string]int // by node, allocations that are told to end
	units int
}

// end tells all allocations to end.
func (j *played) end() { j.ends[j.at], j.runs = j.ends[j.at]+j.runs, 0 }

// on is how many units the job holds on a node.
func (j *played) on(node string) int {
	n := j.ends[node]
	if j.at == node {
		n += j.runs
	}
	return n * j.units
}

const (
	playPool  = "nvidia/gpu/A100"
	playUnits = 2 // of each node
)

// spare is the node to which victims move.
func (p *play) spare() string { return p.ns + "-spare" }

// nodes are those on which a job may run, the first one first.
func (p *play) nodes(id string) []string {
	if p.moves && id != "asker" {
		return []string{p.ns, p.spare()}
	}
	return []string{p.ns}
}

// all are the jobs in the order of the queue.
func (p *play) all() []string {
	if p.moves {
		return []string{"asker", "v1", "v2", "newcomer"}
	}
	return []string{"asker", "v1", "v2"}
}

func (p *play) Extend(ctx context.Context, id string, until time.Time) (won bool, err error) {
	err = p.call(func() (err error) { won, err = p.db.Extend(ctx, id, until); return err })
	return won, err
}

// OpenEvictions, MoveEviction and the rest are calls of the process under test.
func (p *play) OpenEvictions(ctx context.Context) (out []store.Eviction, err error) {
	err = p.call(func() (err error) { out, err = p.db.OpenEvictions(ctx); return err })
	return slices.DeleteFunc(out, func(e store.Eviction) bool { return e.Namespace != p.ns }), err
}

func (p *play) MoveEviction(ctx context.Context, e store.Eviction, jobs []store.Job, release string) (out store.Eviction, err error) {
	err = p.call(func() (err error) { out, err = p.db.MoveEviction(ctx, e, jobs, release); return err })
	return out, err
}

type playStore struct{ *play }

func (p playStore) Job(ctx context.Context, namespace, id string) (out store.Job, err error) {
	err = p.call(func() (err error) { out, err = p.db.Job(ctx, namespace, id); return err })
	return out, err
}

type playNomad struct{ *play }

func (p playNomad) Job(_ context.Context, _, id string) (out nomadapi.Tree, err error) {
	err = p.call(func() error {
		out = maps.Clone(p.jobs[id].tree)
		out["JobModifyIndex"] = json.Number(fmt.Sprint(p.jobs[id].index))
		if p.races[id] {
			delete(p.races, id)
			return p.sendAgain(id)
		}
		return nil
	})
	return out, err
}

func (p playNomad) Register(_ context.Context, _ string, request json.RawMessage) (out nomadapi.Tree, err error) {
	err = p.call(func() error { return p.register(request) })
	return Tree{"EvalID": ""}, err
}

func (p *play) register(request json.RawMessage) error {
	var env Tree
	if err := nomadapi.DecodeTree(request, &env); err != nil {
		return err
	}
	job := env["Job"].(Tree)
	j := p.jobs[job["ID"].(string)]
	if isEnforced(env) && env["JobModifyIndex"] != json.Number(fmt.Sprint(j.index)) {
		return errOther
	}
	j.tree = job
	j.index++
	if groupsOf(job)[0]["Count"] == json.Number("0") {
		j.end()
	}
	return nil
}

// sendAgain is a user who stops a job and sends it anew.
func (p *play) sendAgain(id string) error {
	row, err := p.db.Job(context.Background(), p.ns, id)
	if err != nil {
		return err
	}
	row.State, row.ReasonCode = store.JobSubmitted, ""
	if _, err = p.db.PutJob(context.Background(), row); err != nil {
		return err
	}
	p.jobs[id].index++
	p.jobs[id].runs = 1
	return nil
}

func (p *play) SignalAlloc(context.Context, string, string, string, string) error {
	return p.call(func() error { p.signals++; return nil })
}

func (p *play) evictor() *evictor {
	return &evictor{
		store: playStore{p}, nomad: playNomad{p}, signals: p, live: func(key watch.JobKey) []*watch.Alloc {
			var out []*watch.Alloc
			for range p.jobs[key.ID].runs + p.jobs[key.ID].ends[p.ns] + p.jobs[key.ID].ends[p.spare()] {
				out = append(out, &watch.Alloc{ID: key.ID})
			}
			return out
		},
		kill: func(store.Job) time.Duration { return 5 * time.Second }, lock: func(watch.JobKey) func() { return func() {} }, now: p.clock.Now,
		wakeAt: func(time.Time) {}, expect: func(watch.JobKey, string) {}, changed: func(store.Eviction) {}, grace: 20 * time.Second, watchdog: 30 * time.Second,
		log: hclog.NewNullLogger(),
	}
}

// newPlay starts the victims, has the asker wait and states its eviction.
func newPlay(t *rapid.T, db *store.Store, now *clock.Fake) *play {
	p := &play{fuse: fuse{left: -1}, moves: rapid.Bool().Draw(t, "moves"), calm: true, db: db, clock: now, ns: store.NewID(), jobs: map[string]*played{}, stuck: map[string]bool{}, races: map[string]bool{}}
	ctx := context.Background()
	for _, node := range p.nodes("") {
		must(t, db.PutPools(ctx, node, []store.Pool{{NodeID: node, Group: playPool, Capacity: playUnits}}))
	}
	var rows []store.Job
	var victims []store.Victim
	id := store.NewID()
	rooms := []store.Reservation{{
		ID: id, Namespace: p.ns, JobID: "asker", ExpiresAt: now.Now().Add(time.Hour), Claims: []store.Claim{{NodeID: p.ns, Group: playPool, Units: playUnits}},
	}}
	for _, name := range p.all() {
		tree := Tree{"ID": name, "TaskGroups": []any{Tree{"Name": "g", "Count": json.Number("1")}}}
		p.jobs[name] = &played{tree: tree, index: 1, units: 1, at: p.ns, ends: map[string]int{}}
		row := store.Job{Namespace: p.ns, ID: name, Priority: 10, State: store.JobSubmitted, Injection: json.RawMessage(`{"groups":[]}`)}
		victim := name != "asker" && name != "newcomer"
		if victim {
			p.jobs[name].runs = 1
			must(t, p.settle(ctx, name))
			victims = append(victims, store.Victim{Namespace: p.ns, JobID: name, Priority: 10, MilliCards: 1000, Signal: rapid.SampledFrom([]string{"", "SIGUSR1"}).Draw(t, "signal")})
		} else {
			row.State, row.Injection = store.JobWaiting, nil
		}
		if name == "asker" {
			p.jobs[name].units, row.Priority = playUnits, 50
		}
		row, err := db.PutJob(ctx, row)
		must(t, err)
		if victim {
			row.State, row.ReasonCode = store.JobWaiting, string(codePreempting)
		}
		if name != "newcomer" {
			rows = append(rows, row)
		}
		if victim && p.moves {
			has, err := db.ReservationOf(ctx, p.ns, name)
			must(t, err)
			room := store.Reservation{ID: store.NewID(), Replaces: has.ID, Namespace: p.ns, JobID: name, ExpiresAt: now.Now().Add(time.Hour), Claims: has.Claims}
			room.Claims = append(room.Claims, store.Claim{NodeID: p.spare(), Group: playPool, Units: 1})
			rooms, victims[len(victims)-1].Room = append(rooms, room), room.ID
		}
	}
	_, err := db.PutEviction(ctx, store.Eviction{ID: id, Namespace: p.ns, JobID: "asker", Victims: victims, Deadline: now.Now()}, rows, rooms...)
	must(t, err)
	return p
}

func must(t *rapid.T, err error) {
	if err != nil {
		t.Fatal(err)
	}
}

// settle is the watcher.
func (p *play) settle(ctx context.Context, id string) error {
	j := p.jobs[id]
	var live []store.Claim
	for _, node := range []string{p.ns, p.spare()} {
		for i := range j.on(node) / j.units {
			live = append(live, store.Claim{NodeID: node, Group: playPool, Units: j.units, AllocID: fmt.Sprint(id, node, i)})
		}
	}
	return p.db.Settle(ctx, p.ns, id, live, 0)
}

// queue starts each waiting job for which there is room, or which runs already, as Retry does.
func (p *play) queue(ctx context.Context) error {
	for _, id := range p.all() {
		row, err := p.db.Job(ctx, p.ns, id)
		if err != nil {
			return err
		}
		if row.State != store.JobWaiting || isPreempting(row) {
			continue
		}
		if len(row.Injection) == 0 {
			open, err := p.db.ReservationOf(ctx, p.ns, id)
			if err != nil && !errors.Is(err, store.ErrNotFound) {
				return err
			}
			at, err := p.placeFor(ctx, id, open)
			if err != nil {
				return err
			}
			if at == "" {
				continue
			}
			row.State, row.ReasonCode, row.Injection = store.JobSubmitted, "", json.RawMessage(`{"groups":[]}`)
			_, err = p.db.PutJobReserving(ctx, row, store.Reservation{
				ID: store.NewID(), Replaces: open.ID, Namespace: p.ns, JobID: id, ExpiresAt: p.clock.Now().Add(time.Hour),
				Claims: []store.Claim{{NodeID: at, Group: playPool, Units: p.jobs[id].units}},
			})
			var full *store.NoRoomError
			if errors.As(err, &full) {
				continue
			}
			if err != nil {
				return err
			}
			p.jobs[id].at = at
		} else {
			row.State, row.ReasonCode = store.JobSubmitted, ""
			if _, err := p.db.PutJob(ctx, row); err != nil {
				return err
			}
		}
		j := p.jobs[id]
		j.tree = Tree{"ID": id, "TaskGroups": []any{Tree{"Name": "g", "Count": json.Number("1")}}}
		j.index++
		j.runs = max(j.runs, 1)
	}
	return nil
}

// placeFor is the first node that the engine would see as free for a job with this reservation; empty for none.
func (p *play) placeFor(ctx context.Context, id string, open store.Reservation) (string, error) {
	pools, err := p.db.Pools(ctx)
	if err != nil {
		return "", err
	}
	for _, node := range p.nodes(id) {
		free := 0
		for _, pool := range pools {
			if pool.NodeID == node {
				free = pool.Capacity - pool.Taken
			}
		}
		for _, c := range open.Claims {
			if c.NodeID == node {
				free += c.Units
			}
		}
		if free >= p.jobs[id].units {
			return node, nil
		}
	}
	return "", nil
}

// held is how many units all allocations hold on a node.
func (p *play) held(node string) int {
	n := 0
	for _, j := range p.jobs {
		n += j.on(node)
	}
	return n
}

// TestEvictor_AnyCrash lets the service die at any call of an eviction, before or after it took effect, again and again,
// while users stop jobs and allocations do not end. No job is lost, no unit has two owners, and every eviction ends. Where
// victims move and nothing but crashes happens, all of them run in the end, and who asked, whoever else wants the room.
func TestEvictor_AnyCrash(t *testing.T) {
	t.Parallel()
	now := clock.NewFake(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	db, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "state.db"), nil, store.WithClock(now))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	ends := map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		p := newPlay(t, db, now)
		for range rapid.IntRange(0, 4).Draw(t, "crashes") {
			p.fuse = fuse{left: rapid.IntRange(1, 12).Draw(t, "calls"), after: rapid.Bool().Draw(t, "took effect")}
			p.round(t, true)
		}
		p.fuse = fuse{left: -1}
		for range 4 {
			p.round(t, false)
			now.Advance(30 * time.Second)
		}
		ends[fmt.Sprintf("%s, moves %v", p.check(t), p.moves)]++
	})
	t.Logf("evictions that ended: %v", ends)
}

// round is a while of the life of the cluster.
func (p *play) round(t *rapid.T, trouble bool) {
	ctx := context.Background()
	for range 2 {
		err := p.evictor().work(ctx)
		if err != nil && !errors.Is(err, errCrash) && !errors.Is(err, errOther) {
			t.Fatal(err)
		}
		if trouble {
			p.happens(t)
		}
		for _, id := range slices.Sorted(maps.Keys(p.jobs)) {
			if j := p.jobs[id]; !p.stuck[id] {
				clear(j.ends)
			}
			must(t, p.settle(ctx, id))
		}
		_, err = p.db.Expire(ctx, p.clock.Now())
		must(t, err)
		must(t, p.queue(ctx))
		for _, node := range p.nodes("") {
			if n := p.held(node); n > playUnits && len(p.stuck) == 0 {
				t.Fatalf("%d units are held of %d", n, playUnits)
			}
		}
		if trouble {
			p.clock.Advance(time.Duration(rapid.IntRange(0, 40).Draw(t, "seconds")) * time.Second)
		}
	}
}

// happens is what others do meanwhile.
func (p *play) happens(t *rapid.T) {
	id := rapid.SampledFrom([]string{"v1", "v2", "asker"}).Draw(t, "job")
	event := rapid.SampledFrom([]string{"", "", "", "", "stop", "sticks", "sent again"}).Draw(t, "event")
	p.calm = p.calm && event == ""
	switch event {
	case "stop":
		row, err := p.db.Job(context.Background(), p.ns, id)
		must(t, err)
		row.State, row.ReasonCode, row.Injection = store.JobStopped, "", nil
		_, err = p.db.PutJob(context.Background(), row)
		must(t, err)
		p.jobs[id].end()
		must(t, p.db.Release(context.Background(), p.ns, id))
	case "sticks":
		p.stuck[id] = true
	case "sent again":
		p.races[id] = id != "asker"
	}
}

// check holds the end against what must be, and says how the eviction ended.
func (p *play) check(t *rapid.T) string {
	ctx := context.Background()
	past, err := p.db.EvictionsSince(ctx, time.Time{})
	must(t, err)
	var mine store.Eviction
	for _, e := range past {
		if e.Namespace == p.ns {
			mine = e
		}
	}
	if mine.Open() {
		t.Fatalf("the eviction is still %s", mine.State)
	}
	for id, j := range p.jobs {
		row, err := p.db.Job(ctx, p.ns, id)
		must(t, err)
		switch {
		case row.State == store.JobSubmitted && j.runs != 1:
			t.Fatalf("%s is submitted and %d of its allocations run", id, j.runs)
		case row.State == store.JobWaiting && isPreempting(row):
			t.Fatalf("%s is left where nobody tries it", id)
		case row.State == store.JobWaiting && j.runs > 0:
			t.Fatalf("%s waits and runs", id)
		case row.State != store.JobSubmitted && row.State != store.JobWaiting && row.State != store.JobStopped:
			t.Fatalf("%s is %s", id, row.State)
		}
	}
	if open, err := p.db.ReservationOf(ctx, p.ns, "asker"); err == nil && open.ID == mine.ID {
		t.Fatal("the room of the eviction is still held")
	}
	if p.moves {
		p.checkMoves(t, mine.State)
	}
	return mine.State
}

// checkMoves holds the end of an eviction whose victims move against what must be.
func (p *play) checkMoves(t *rapid.T, state string) {
	if p.calm && state == store.EvictionDone {
		for _, id := range []string{"asker", "v1", "v2"} {
			if p.jobs[id].runs != 1 {
				t.Fatalf("%s does not run, and nothing went wrong", id)
			}
		}
		if p.jobs["newcomer"].runs > 0 {
			t.Fatal("the newcomer has room that was held for one that moved")
		}
	}
	if len(p.stuck) > 0 {
		return
	}
	pools, err := p.db.Pools(context.Background())
	must(t, err)
	for _, pool := range pools {
		if slices.Contains(p.nodes(""), pool.NodeID) && pool.Taken != p.held(pool.NodeID) {
			t.Fatalf("%d units are taken and %d are held", pool.Taken, p.held(pool.NodeID))
		}
	}
}

// A plan that took long has the queue worked on before the next one, and a job without a plan waits for another.
func TestMayPlan_LeavesTimeForTheQueue(t *testing.T) {
	t.Parallel()
	now := clock.NewFake(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	s := New(Config{Clock: now, Log: hclog.NewNullLogger()})
	one, two := watch.JobKey{ID: "one"}, watch.JobKey{ID: "two"}
	planned, may := s.mayPlan(&s.plans, one)
	if !may {
		t.Fatal("nothing may be planned at first")
	}
	now.Advance(time.Second)
	planned()
	if _, may := s.mayPlan(&s.plans, two); may {
		t.Error("another plan may follow at once")
	}
	now.Advance(planShare * time.Second)
	if _, may := s.mayPlan(&s.plans, two); !may {
		t.Error("no other plan may follow")
	}
	if _, may := s.mayPlan(&s.plans, one); may {
		t.Error("the same job is planned for again")
	}
	now.Advance(planPause)
	if _, may := s.mayPlan(&s.plans, one); !may {
		t.Error("the same job is never planned for again")
	}
}

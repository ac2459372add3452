package gangs

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/grant"
	"github.com/heteroflow/heteroflow/internal/store"
	"github.com/heteroflow/heteroflow/placement-service/admission"
	"github.com/heteroflow/heteroflow/placement-service/engine"
	"github.com/heteroflow/heteroflow/placement-service/watch"
)

var epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// fake is a store, a cluster and a Nomad in memory.
type fake struct {
	mu        sync.Mutex
	clock     clock.Clock
	rows      map[string]store.GangMember
	plan      []engine.Member
	fates     map[string]watch.Fate // FateRuns where nothing is said
	coming    bool
	state     string // of the job
	restarted chan string
	ended     chan struct{}
	why       string
}

func (f *fake) ArriveGangMember(_ context.Context, m store.GangMember) (store.GangMember, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	have, there := f.rows[m.AllocID]
	m.SeenAt, m.CameAt = f.clock.Now(), f.clock.Now()
	if there && have.Visit == m.Visit {
		m.CameAt, m.Attempt, m.Rank = have.CameAt, have.Attempt, have.Rank
	}
	f.rows[m.AllocID] = m
	return m, nil
}

func (f *fake) GangMembers(context.Context, string, string) ([]store.GangMember, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Values(f.rows)), nil
}

func (f *fake) StartGang(_ context.Context, members []store.GangMember) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range members {
		if have := f.rows[m.AllocID]; have.Attempt != 0 || have.Visit != m.Visit {
			return false, nil
		}
	}
	for _, m := range members {
		have := f.rows[m.AllocID]
		have.Attempt, have.Rank = m.Attempt, m.Rank
		f.rows[m.AllocID] = have
	}
	return true, nil
}

func (f *fake) RecallGang(context.Context, string, string) ([]store.GangMember, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []store.GangMember
	for id, m := range f.rows {
		if m.Attempt > 0 {
			m.Attempt = -m.Attempt
			f.rows[id] = m
			out = append(out, m)
		}
	}
	return out, nil
}

func (f *fake) ForgetGang(_ context.Context, _, _ string, allocs ...string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(allocs) == 0 {
		clear(f.rows)
	}
	for _, id := range allocs {
		delete(f.rows, id)
	}
	return nil
}

func (f *fake) Job(context.Context, string, string) (store.Job, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	text, err := json.Marshal(admission.Injection{Gang: f.plan})
	return store.Job{State: f.state, Injection: text}, err
}

func (f *fake) StartedGangs(context.Context) ([]store.StartedGang, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range f.rows {
		if m.Attempt != 0 {
			return []store.StartedGang{{Namespace: "default", JobID: "train"}}, nil
		}
	}
	return nil, nil
}

func (f *fake) AddDecision(_ context.Context, d store.Decision) error {
	f.why = d.Reason
	return nil
}

func (f *fake) Fate(id string) watch.Fate {
	f.mu.Lock()
	defer f.mu.Unlock()
	if fate, said := f.fates[id]; said {
		return fate
	}
	return watch.FateRuns
}

func (f *fake) Crew(watch.JobKey) map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for id := range f.rows {
		if fate, said := f.fates[id]; !said || fate == watch.FateRuns {
			n++
		}
	}
	return map[string]int{"workers": n}
}

func (f *fake) Stale(time.Time) string { return "" }

func (f *fake) Ready() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

func (f *fake) Coming(context.Context, watch.JobKey) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.coming, nil
}

func (f *fake) NodeAddress(node string) string      { return "10.0.0." + strings.TrimPrefix(node, "n") }
func (f *fake) NearestNIC(node, card string) string { return "mlx5_" + card[len(card)-1:] }
func (f *fake) lost(id string)                      { f.ends(id, watch.FateLost) }
func (f *fake) Deregister(context.Context, string, string, bool) (string, error) {
	f.mu.Lock()
	f.state = store.JobStopped
	for id := range f.rows {
		f.fates[id] = watch.FateLost
	}
	f.mu.Unlock()
	f.ended <- struct{}{}
	return "", nil
}

// ends has an allocation end.
func (f *fake) ends(id string, fate watch.Fate) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fates[id] = fate
}

func (f *fake) RestartAlloc(_ context.Context, _, id string) error {
	f.restarted <- id
	return nil
}

// bench is a room with what it needs.
type bench struct {
	t     *testing.T
	fake  *fake
	clock *clock.Fake
	key   ed25519.PrivateKey
	room  *Room
	gang  grant.Gang
}

func newBench(t *testing.T, g grant.Gang) *bench {
	t.Helper()
	key, err := grant.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	c := clock.NewFake(epoch)
	f := &fake{
		clock: c, rows: map[string]store.GangMember{}, fates: map[string]watch.Fate{}, coming: true, state: store.JobSubmitted,
		restarted: make(chan string, 8), ended: make(chan struct{}, 8),
	}
	b := &bench{t: t, fake: f, clock: c, key: key, gang: g}
	b.room = b.instance()
	return b
}

// instance is one more instance of the service.
func (b *bench) instance() *Room {
	return New(Config{
		Store: b.fake, Cluster: b.fake, Nomad: b.fake, Coming: b.fake.Coming, Key: b.key.Public().(ed25519.PublicKey), Clock: b.clock, Log: hclog.NewNullLogger(),
	})
}

// come has a member come to the start; what it is told arrives in the channel.
func (b *bench) come(room *Room, alloc, visit string, index int, node string) <-chan Answer {
	b.t.Helper()
	token, err := grant.Grant{ID: "g", Namespace: "default", Job: "train", Group: "workers", Task: "main", Count: 2, Gang: &b.gang}.Sign(b.key)
	if err != nil {
		b.t.Fatal(err)
	}
	out := make(chan Answer, 1)
	go func() {
		a, err := room.Meet(context.Background(), Arrival{Grant: token, AllocID: alloc, Visit: visit, Said: Said{
			Index: index, NodeID: node, Port: 20000 + index, Vendor: accel.NVIDIA, Cards: []Card{{UUID: "GPU-" + node + "-0", Index: 0}, {UUID: "GPU-" + node + "-1", Index: 1}},
		}}, time.Hour)
		if err != nil {
			a = Answer{State: "error", Reason: err.Error()}
		}
		out <- a
	}()
	return out
}

// settle waits until so many members wait.
func (b *bench) settle(n int) {
	b.t.Helper()
	if err := b.clock.AwaitWaiters(b.t.Context(), 2*n); err != nil { // each for its patience and for the next look
		b.t.Fatal(err)
	}
}

func TestMeet_NobodyStartsBeforeAllCame(t *testing.T) {
	t.Parallel()
	b := newBench(t, grant.Gang{Members: 3, Framework: "ddp", StartSeconds: 60, OnLost: grant.RestartGang})
	b.fake.plan = []engine.Member{{Group: "workers", NodeID: "n3"}, {Group: "workers", NodeID: "n1"}, {Group: "workers", NodeID: "n2"}}
	one := b.come(b.room, "a1", "v1", 0, "n1")
	two := b.come(b.room, "a2", "v2", 1, "n2")
	b.settle(2)
	select {
	case a := <-one:
		t.Fatalf("a member starts alone: %+v", a)
	case a := <-two:
		t.Fatalf("a member starts without the third: %+v", a)
	default:
	}
	three := b.come(b.room, "a3", "v3", 2, "n3")
	answers := []Answer{<-three, <-one, <-two} // in the order of the plan
	for rank, a := range answers {
		if a.State != Started || a.Rank != rank || a.Attempt != 1 {
			t.Errorf("rank %d: %+v", rank, a)
		}
		want := map[string]string{
			"WORLD_SIZE": "6", "RANK": fmt.Sprint(2 * rank), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "NODE_RANK": fmt.Sprint(rank),
			"MASTER_ADDR": "10.0.0.3", "MASTER_PORT": "20002", "NCCL_IB_HCA": "=mlx5_0,mlx5_1",
		}
		for name, value := range want {
			if a.Setting.Env[name] != value {
				t.Errorf("rank %d: %s = %q, want %q", rank, name, a.Setting.Env[name], value)
			}
		}
	}
}

// The members come to different instances of the service.
func TestMeet_AcrossInstances(t *testing.T) {
	t.Parallel()
	b := newBench(t, grant.Gang{Members: 2, Framework: "ddp", StartSeconds: 60, OnLost: grant.RestartGang})
	one := b.come(b.room, "a1", "v1", 0, "n1")
	b.settle(1)
	two := b.come(b.instance(), "a2", "v2", 1, "n2")
	if a := <-two; a.State != Started || a.Rank != 1 {
		t.Errorf("%+v", a)
	}
	b.clock.Advance(looks)
	if a := <-one; a.State != Started || a.Rank != 0 {
		t.Errorf("%+v", a)
	}
}

// When one does not come in time, all that wait are let go with the reason.
func TestMeet_TimeoutReleasesAll(t *testing.T) {
	t.Parallel()
	b := newBench(t, grant.Gang{Members: 3, Framework: "ddp", StartSeconds: 5, OnLost: grant.RestartGang})
	one := b.come(b.room, "a1", "v1", 0, "n1")
	b.settle(1)
	b.clock.Advance(2 * time.Second)
	b.settle(1)
	two := b.come(b.room, "a2", "v2", 1, "n2")
	b.settle(2)
	for _, answers := range []<-chan Answer{one, two} {
		var a Answer
		for done := false; !done; {
			select {
			case a = <-answers:
				done = true
			default:
				b.clock.Advance(looks)
			}
		}
		if a.State != GivenUp || !strings.Contains(a.Reason, "members of the gang came within 5s") {
			t.Errorf("%+v", a)
		}
	}
	if len(b.fake.rows) != 0 {
		t.Errorf("members that were let go are still counted: %v", b.fake.rows)
	}
}

func startTwo(t *testing.T, policy grant.OnLost) *bench {
	t.Helper()
	b := newBench(t, grant.Gang{Members: 2, Framework: "ddp", StartSeconds: 60, OnLost: policy})
	one := b.come(b.room, "a1", "v1", 0, "n1")
	b.settle(1)
	two := b.come(b.room, "a2", "v2", 1, "n2")
	if first, second := <-one, <-two; first.State != Started || second.State != Started {
		t.Fatalf("%+v %+v", first, second)
	}
	b.clock.Advance(lifeSign) // those that run are not heard of
	return b
}

func TestMeet_MemberLost(t *testing.T) {
	t.Parallel()
	t.Run("restart_gang", func(t *testing.T) {
		t.Parallel()
		b := startTwo(t, grant.RestartGang)
		b.fake.lost("a2")
		again := b.come(b.room, "a3", "v3", 1, "n3")
		if id := <-b.fake.restarted; id != "a1" || len(b.fake.restarted) > 0 {
			t.Errorf("restarted: %v", id)
		}
		first := b.come(b.room, "a1", "v4", 0, "n1")
		for rank, a := range []Answer{<-first, <-again} {
			if a.State != Started || a.Attempt != 2 || a.Rank != rank || a.Setting.Env["PET_RDZV_ID"] != "default/train-2" {
				t.Errorf("rank %d: %+v", rank, a)
			}
		}
	})
	t.Run("restart_member", func(t *testing.T) {
		t.Parallel()
		b := startTwo(t, grant.RestartMember)
		b.fake.lost("a2")
		a := <-b.come(b.room, "a3", "v3", 1, "n3")
		if a.State != Started || a.Attempt != 1 || a.Rank != 1 || a.Setting.Env["MASTER_ADDR"] != "10.0.0.1" {
			t.Errorf("%+v", a)
		}
		if len(b.fake.restarted) > 0 {
			t.Errorf("%d are restarted", len(b.fake.restarted))
		}
		same := <-b.come(b.room, "a1", "v5", 0, "n1") // its task began anew in its allocation
		if same.State != Started || same.Rank != 0 {
			t.Errorf("%+v", same)
		}
	})
	t.Run("fail", func(t *testing.T) {
		t.Parallel()
		b := startTwo(t, grant.FailGang)
		b.fake.lost("a2")
		if a := <-b.come(b.room, "a3", "v3", 1, "n3"); a.State != Stopped || len(b.fake.ended) != 1 {
			t.Errorf("%+v, the job was ended %d times", a, len(b.fake.ended))
		}
	})
}

func TestMeet_StoppedWhileItWaits(t *testing.T) {
	t.Parallel()
	b := newBench(t, grant.Gang{Members: 2, Framework: "ddp", StartSeconds: 60, OnLost: grant.RestartGang})
	one := b.come(b.room, "a1", "v1", 0, "n1")
	b.settle(1)
	b.fake.lost("a1")
	b.clock.Advance(looks)
	if a := <-one; a.State != Stopped {
		t.Errorf("%+v", a)
	}
}

func TestMeet_OnlyByGrant(t *testing.T) {
	t.Parallel()
	b := newBench(t, grant.Gang{Members: 1, Framework: "ddp", StartSeconds: 60, OnLost: grant.RestartGang})
	none, err := grant.Grant{ID: "g", Job: "other"}.Sign(b.key)
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := grant.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := grant.Grant{ID: "g", Job: "train", Gang: &b.gang}.Sign(foreign)
	if err != nil {
		t.Fatal(err)
	}
	for name, token := range map[string]string{"of no gang": none, "of another key": theirs, "no token": "x"} {
		_, err := b.room.Meet(t.Context(), Arrival{Grant: token, AllocID: "a", Visit: "v"}, 0)
		if !errors.As(err, new(*Refused)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Ranks follow the plan: members on the node of a place take it, whatever their index.
func TestRanked(t *testing.T) {
	t.Parallel()
	member := func(alloc, node string, index int) came {
		return came{alloc: alloc, said: Said{Group: "g", NodeID: node, Index: index}}
	}
	plan := []engine.Member{{Group: "g", NodeID: "n2"}, {Group: "g", NodeID: "n2"}, {Group: "g", NodeID: "n1"}}
	for name, tc := range map[string]struct {
		members []came
		want    []string
	}{
		"by node, then index":          {[]came{member("a", "n1", 0), member("b", "n2", 2), member("c", "n2", 1)}, []string{"c", "b", "a"}},
		"one that Nomad put elsewhere": {[]came{member("a", "n1", 0), member("b", "n9", 1), member("c", "n2", 2)}, []string{"c", "b", "a"}},
		"no plan":                      {[]came{member("b", "n9", 1), member("a", "n8", 0)}, []string{"a", "b"}},
	} {
		p := plan
		if name == "no plan" {
			p = nil
		}
		var got []string
		for i, c := range ranked(p, tc.members) {
			if c.rank != i {
				t.Errorf("%s: rank %d at %d", name, c.rank, i)
			}
			got = append(got, c.alloc)
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

// An elastic gang starts with those that were placed, is told between how many it may have, and grows by one that starts
// beside those that run.
func TestMeet_Elastic(t *testing.T) {
	t.Parallel()
	b := newBench(t, grant.Gang{Members: 4, Min: 2, Framework: "ddp", StartSeconds: 60, OnLost: grant.RestartMember})
	b.fake.plan = []engine.Member{{Group: "workers", NodeID: "n2"}, {Group: "workers", NodeID: "n1"}}
	one := b.come(b.room, "a1", "v1", 0, "n1")
	b.settle(1)
	two := b.come(b.room, "a2", "v2", 1, "n2")
	first, second := <-one, <-two
	for rank, a := range []Answer{first, second} {
		if a.State != Started || a.Rank != rank || a.Members != 2 || a.Setting.Env["PET_NNODES"] != "2:4" || a.Setting.Env["PET_RDZV_ENDPOINT"] != "10.0.0.1:20000" {
			t.Errorf("rank %d: %+v", rank, a)
		}
	}
	b.fake.mu.Lock()
	b.fake.plan = append(b.fake.plan, engine.Member{Group: "workers", NodeID: "n3"})
	b.fake.mu.Unlock()
	a := <-b.come(b.room, "a3", "v3", 2, "n3")
	if a.State != Started || a.Rank != 2 || a.Attempt != 1 || a.Setting.Env["PET_RDZV_ENDPOINT"] != "10.0.0.1:20000" || a.Setting.Env["PET_RDZV_ID"] != first.Setting.Env["PET_RDZV_ID"] {
		t.Errorf("%+v", a)
	}
	if len(b.fake.restarted) > 0 {
		t.Errorf("%d were restarted", len(b.fake.restarted))
	}
}

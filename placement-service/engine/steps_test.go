package engine

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/internal/accel"
)

type failer interface{ Fatalf(string, ...any) }

// A lived is a job that was placed and has not left.
type lived struct {
	request  Request
	decision Decision
}

// steps is one long life of a cluster.
type steps struct {
	t       *testing.T
	rng     *rand.Rand
	e       *Engine
	cluster *Cluster
	live    []lived
	names   int
	placed  int
	refused int
}

// TestSteps is a long life of a small cluster: jobs come and leave, nodes are added and go, and after every step the rules hold
// that no placement may break. HETEROFLOW_TEST_STEPS is how many steps it takes; `make nightly` takes two million.
func TestSteps(t *testing.T) {
	t.Parallel()
	count := 3000
	if text := os.Getenv("HETEROFLOW_TEST_STEPS"); text != "" {
		var err error
		if count, err = strconv.Atoi(text); err != nil {
			t.Fatalf("HETEROFLOW_TEST_STEPS=%q is no number of steps", text)
		}
	}
	for seed, e := range []*Engine{New(Config{}), New(Config{Learnt: learntSome(), Level: 2})} {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			s := &steps{t: t, rng: rand.New(rand.NewPCG(uint64(seed), 5)), e: e, cluster: NewCluster()}
			for range 8 {
				s.addNode()
			}
			for n := range count / 2 {
				s.step()
				if t.Failed() {
					t.Fatalf("at step %d", n)
				}
			}
			if s.placed < count/20 || s.refused < count/100 {
				t.Errorf("%d jobs placed, %d refused: the life was too easy or too hard", s.placed, s.refused)
			}
		})
	}
}

func (s *steps) step() {
	switch at := s.rng.IntN(100); {
	case at < 50 || len(s.live) == 0:
		s.arrive()
	case at < 96:
		s.leave(s.rng.IntN(len(s.live)))
	case at < 98:
		s.removeNode()
	default:
		s.addNode()
	}
	s.agree()
}

func pick[T any](s *steps, from ...T) T { return from[s.rng.IntN(len(from))] }

func (s *steps) addNode() {
	const most = 14
	if len(s.cluster.Snapshot().Nodes) < most {
		s.cluster.Set(s.drawnNode())
	}
}

func (s *steps) drawnNode() Node {
	s.names++
	n := testNode{
		Name: fmt.Sprintf("n%d", s.names), CPU: pick(s, 4000, 64000), Attrs: map[string]string{"meta.rack": pick(s, "r1", "r2")},
		Offline: s.rng.IntN(20) == 0, Tenants: pick(s, nil, nil, nil, []string{"blue", "red"}), Beside: pick(s, nil, nil, []string{"blue", "red"}, []string{AnyTenant}),
	}
	form := pick(s, accel.Shared, accel.Shared, accel.Whole, accel.MIG)
	if form == accel.Whole {
		n.Cards = []testCard{{Form: form, Model: pick(s, "A", "B"), Count: 1 + s.rng.IntN(4), GiB: 32}}
		return snapshotOf(n).Nodes[0]
	}
	for range 1 + s.rng.IntN(4) {
		n.Cards = append(n.Cards, testCard{
			Form: form, Model: pick(s, "A", "B"), GiB: pick(s, 16, 32), Unit: pick(s, 1024, 2048), Auto: s.rng.IntN(4) == 0,
			Modes: pick(s, nil, []string{"mps"}, []string{"hami"}), Rounding: pick(s, "", "", "mps:memory=512"),
		})
	}
	return snapshotOf(n).Nodes[0]
}

// removeNode takes away a node on which nothing runs.
func (s *steps) removeNode() {
	var idle []string
	for _, n := range s.cluster.Snapshot().Nodes {
		used := n.UsedCPUMHz
		for _, p := range n.Pools {
			used += p.Used
		}
		if used == 0 {
			idle = append(idle, n.ID)
		}
	}
	if len(idle) > 0 {
		s.cluster.Remove(pick(s, idle...))
	}
}

func (s *steps) request() Request {
	a := accel.Ask{Count: pick(s, 1, 1, 1, 2, 3), MemoryMiB: pick[uint64](s, 0, 1, 1500, 4096, 9000, 16384), QoS: pick[accel.QoS](s, "", "", "", accel.Silver)}
	if len(a.Models) == 0 && s.rng.IntN(4) == 0 {
		a.Models = []string{pick(s, "A", "B*")}
	}
	r := ask(pick(s, 1, 1, 1, 2, 4), a)
	r.Tenant = pick(s, "blue", "blue", "red", "green")
	r.DistinctHosts = s.rng.IntN(10) == 0
	if s.rng.IntN(8) == 0 {
		r.Groups[0].Apart = []Apart{{"${meta.rack}", 1 + s.rng.IntN(2), false}}
	}
	r.Groups[0].CPUMHz = pick(s, 0, 100, 600)
	if s.rng.IntN(5) == 0 {
		r.Groups[0].Constraints = []Constraint{{"${meta.rack}", "r1", "="}}
	}
	return r
}

// arrive decides for a job, alike on the cluster and on its snapshot, and books it.
func (s *steps) arrive() {
	r, before := s.request(), s.cluster.Snapshot()
	d := s.e.DecideOn(s.cluster, r)
	if diff := cmp.Diff(s.e.Decide(before, r), d); diff != "" {
		s.t.Fatalf("(-of the snapshot +of the cluster)\n%s", diff)
	}
	if !d.Placed {
		s.refused++
		if len(d.Groups) > 0 {
			s.t.Fatalf("a part was placed of what was refused: %+v", d.Groups)
		}
		return
	}
	s.placed++
	checkPlan(s.t, before, r, d)
	more := clone(before)
	more.Nodes = append(more.Nodes, s.drawnNode())
	if again := s.e.Decide(more, r); !again.Placed {
		s.t.Fatalf("with one more node it does not fit any more: %s", again.Refusal.Sentence)
	}
	after := clone(before)
	book(s.t, after, r, d)
	s.set(after, d)
	s.live = append(s.live, lived{r, d})
}

func (s *steps) set(from Snapshot, d Decision) {
	for _, g := range d.Groups {
		for _, p := range g.Placements {
			s.cluster.Set(*nodeOf(from, p.NodeID))
		}
	}
}

func (s *steps) leave(at int) {
	gone := s.live[at]
	s.live = append(s.live[:at], s.live[at+1:]...)
	after := clone(s.cluster.Snapshot())
	for i, g := range gone.decision.Groups {
		for _, p := range g.Placements {
			n, ask := nodeOf(after, p.NodeID), gone.request.Groups[i]
			n.UsedCPUMHz -= ask.CPUMHz
			n.UsedMemoryMiB -= ask.MemoryMiB
			n.UsedDiskMiB -= ask.DiskMiB
			for _, task := range p.Tasks {
				for _, c := range task.Claims {
					giveBack(poolOf(n, c.Group), gone.request.Tenant, c.Units)
				}
			}
		}
	}
	s.set(after, gone.decision)
}

func giveBack(p *Pool, tenant string, units int) {
	p.Used -= units
	p.Hold(tenant, -units)
	for i := range p.Cards {
		back := min(units, p.Cards[i].UsedUnits)
		p.Cards[i].UsedUnits -= back
		units -= back
	}
}

// oneTenant holds a card against the rule that tenants are on one only as a sharing group.
func (s *steps) oneTenant(n *Node, p *Pool) {
	held := 0
	for _, h := range p.Holders {
		held += h.Units
		if other := p.Holders[0].Tenant; h.Tenant != other && !n.together(h.Tenant, other) && !p.wholes() {
			s.t.Fatalf("%s of node %s has shares of %s and %s", p.Group, n.Name, h.Tenant, other)
		}
	}
	if held != p.Used {
		s.t.Fatalf("%s of node %s: tenants hold %d of %d that are taken", p.Group, n.Name, held, p.Used)
	}
}

// agree holds what is taken against what lives.
func (s *steps) agree() {
	live := map[string]int{}
	for _, l := range s.live {
		for _, g := range l.decision.Groups {
			for _, p := range g.Placements {
				for _, task := range p.Tasks {
					for _, c := range task.Claims {
						live[p.NodeID+"/"+c.Group] += c.Units
					}
				}
			}
		}
	}
	for _, n := range s.cluster.Snapshot().Nodes {
		for _, p := range n.Pools {
			at := n.ID + "/" + p.Group
			if p.Used != live[at] || p.Used > p.Total || uint64(p.Used)*p.UnitMiB > p.CardMiB()*uint64(max(1, len(p.Cards))) {
				s.t.Fatalf("%s has %d of %d taken, %d live", at, p.Used, p.Total, live[at])
			}
			s.oneTenant(&n, &p)
			delete(live, at)
		}
	}
	if len(live) > 0 {
		s.t.Fatalf("what lives on no node: %v", live)
	}
}

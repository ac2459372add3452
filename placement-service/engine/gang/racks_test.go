package gang

import (
	"container/heap"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
)

// The experiment: 8 racks of 32 nodes of 8 cards in two halves. Jobs arrive at random and stay an exponential time of
// mean 1. They wait in a queue, first come first served with backfill over the first 200; one that has waited more than
// 2 stops all backfill until it starts.
const (
	rackCount, rackNodes, nodeCards = 8, 32, 8
	window                          = 200
	impatience                      = 2.0
)

var (
	jobSizes = []int{1, 2, 4, 8, 16, 32, 64, 128, 256}
	jobShare = []float64{.45, .12, .13, .18, .05, .035, .02, .01, .005}
)

type job struct {
	id            int
	cards         int
	arrived, stay float64
	slots         []Slot
}

// ask is the job as a gang: whole nodes, or part of one.
func (j *job) ask() Ask {
	if j.cards > nodeCards {
		return Ask{Members: j.cards / nodeCards, Cards: nodeCards}
	}
	return Ask{Members: 1, Cards: j.cards}
}

// policy says where a job goes; nil when it does not go now. Final is true when no other job of its size would go
// either.
type policy interface {
	place(s *simulation, j *job) (slots []Slot, final bool)
}

type simulation struct {
	c       *Cluster
	policy  policy
	random  *rand.Rand
	now     float64
	waiting []*job
	ends    endings

	jobs, skip int
	measured   measures
}

// measures are the results, of the jobs after the first quarter.
type measures struct {
	Wait, WaitLarge    float64 // mean, in mean stays
	ExtraRacks         float64 // above one, a gang
	OneRack, OneHalf   float64 // share of gangs, and of jobs of 2 and 4 cards
	jobs, large        int
	gangs, halved      int
	inRack, inHalf     int
	extra              int
	waited, waitedLong float64
}

type endings []*job

func (e endings) Len() int           { return len(e) }
func (e endings) Less(i, k int) bool { return e[i].arrived < e[k].arrived } // arrived holds the end here
func (e endings) Swap(i, k int)      { e[i], e[k] = e[k], e[i] }
func (e *endings) Push(x any)        { *e = append(*e, x.(*job)) }
func (e *endings) Pop() any {
	old := *e
	last := old[len(old)-1]
	*e = old[:len(old)-1]
	return last
}

func eightRacks(t testing.TB) *Cluster {
	t.Helper()
	var nodes []Node
	for r := range rackCount {
		for n := range rackNodes {
			nodes = append(nodes, Node{ID: fmt.Sprintf("r%dn%d", r, n), Path: []string{fmt.Sprint(r)}, Parts: []int{nodeCards / 2, nodeCards / 2}})
		}
	}
	c, err := New([]string{"rack"}, nodes)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func run(t testing.TB, p policy, load float64, jobs int, seed uint64) measures {
	t.Helper()
	s := &simulation{c: eightRacks(t), policy: p, random: rand.New(rand.NewPCG(seed, 1)), jobs: jobs, skip: jobs / 4}
	arrivals := rand.New(rand.NewPCG(seed, 2))
	mean := 0.0
	for i, size := range jobSizes {
		mean += float64(size) * jobShare[i]
	}
	rate := load * rackCount * rackNodes * nodeCards / mean
	next, made := arrivals.ExpFloat64()/rate, 0
	for made < jobs || len(s.waiting) > 0 {
		if made < jobs && (len(s.ends) == 0 || next <= s.ends[0].arrived) {
			s.now = next
			s.waiting = append(s.waiting, &job{id: made, cards: drawSize(arrivals), arrived: s.now, stay: arrivals.ExpFloat64()})
			made++
			next += arrivals.ExpFloat64() / rate
		} else {
			ended := heap.Pop(&s.ends).(*job)
			s.now = ended.arrived
			if err := s.c.Give(ended.slots); err != nil {
				t.Fatal(err)
			}
		}
		s.start(t)
	}
	m := &s.measured
	m.Wait, m.WaitLarge = m.waited/float64(m.jobs), m.waitedLong/float64(m.large)
	m.ExtraRacks, m.OneRack, m.OneHalf = float64(m.extra)/float64(m.gangs), float64(m.inRack)/float64(m.gangs), float64(m.inHalf)/float64(m.halved)
	return *m
}

func drawSize(r *rand.Rand) int {
	x := r.Float64()
	for i, share := range jobShare {
		if x -= share; x < 0 {
			return jobSizes[i]
		}
	}
	return jobSizes[0]
}

// start starts what can be started of the first jobs that wait.
func (s *simulation) start(t testing.TB) {
	failed := map[int]bool{}
	kept := s.waiting[:0]
	stop := false
	for i, j := range s.waiting {
		if stop || i >= window || failed[j.cards] {
			kept = append(kept, j)
			if s.now-j.arrived > impatience {
				stop = true
			}
			continue
		}
		slots, final := s.policy.place(s, j)
		if slots == nil {
			failed[j.cards] = final
			kept = append(kept, j)
			if s.now-j.arrived > impatience {
				stop = true
			}
			continue
		}
		if err := s.c.Take(slots); err != nil {
			t.Fatal(err)
		}
		s.measure(j, slots)
		j.slots, j.arrived = slots, s.now+j.stay
		heap.Push(&s.ends, j)
	}
	s.waiting = kept
}

func (s *simulation) measure(j *job, slots []Slot) {
	if j.id < s.skip {
		return
	}
	m := &s.measured
	wait := s.now - j.arrived
	m.jobs++
	m.waited += wait
	if j.cards >= 64 {
		m.large++
		m.waitedLong += wait
	}
	if j.cards > nodeCards {
		racks := map[int]bool{}
		for i := range slots {
			racks[slots[i].Node/rackNodes] = true
		}
		m.gangs++
		m.extra += len(racks) - 1
		if len(racks) == 1 {
			m.inRack++
		}
	}
	if j.cards == 2 || j.cards == 4 {
		m.halved++
		if slots[0].Parts[0] == 0 || slots[0].Parts[1] == 0 {
			m.inHalf++
		}
	}
}

// plain are the policies without topology: they order the nodes, and take the lowest free cards.
type plain func(s *simulation, free int) float64

func (p plain) place(s *simulation, j *job) ([]Slot, bool) {
	a := j.ask()
	type at struct {
		node int
		key  float64
	}
	var slots []Slot
	taken := map[int]bool{}
	for range a.Members {
		best := at{node: -1, key: math.Inf(1)}
		for n := range s.c.Len() {
			parts := s.c.Free(n)
			free := parts.sum()
			if free < a.Cards || taken[n] {
				continue
			}
			if key := p(s, free); key < best.key {
				best = at{n, key}
			}
		}
		if best.node < 0 {
			return nil, true
		}
		taken[best.node] = true
		free := s.c.Free(best.node)
		first := min(int(free[0]), a.Cards)
		slots = append(slots, Slot{Node: best.node, Parts: Parts{uint8(first), uint8(a.Cards - first)}})
	}
	return slots, true
}

var plainPolicies = map[string]plain{
	"random":    func(s *simulation, _ int) float64 { return s.random.Float64() },
	"first fit": func(*simulation, int) float64 { return 0 },
	"best fit":  func(_ *simulation, free int) float64 { return float64(free) },
	"spread":    func(_ *simulation, free int) float64 { return -float64(free) },
}

// near is the package's own policy; patient is the same with gangs that wait a little for a rack.
type (
	near    struct{}
	patient struct{ Patience }
)

func (near) place(s *simulation, j *job) ([]Slot, bool) {
	slots, _ := s.c.Place(j.ask())
	return slots, true
}

func (p *patient) place(s *simulation, j *job) ([]Slot, bool) {
	a, waited := j.ask(), s.now-j.arrived
	a.Level = "rack"
	if a.Members > 1 && p.Waits(waited) {
		a.Mode = Required
	}
	slots, _ := s.c.Place(a)
	if slots != nil {
		p.Started(waited)
	}
	return slots, a.Mode != Required
}

func policyNamed(t testing.TB, name string) policy {
	t.Helper()
	switch name {
	case "near":
		return near{}
	case "patient":
		return &patient{Patience{Most: 0.15}}
	}
	p, ok := plainPolicies[name]
	if !ok {
		t.Fatalf("there is no policy %q", name)
	}
	return p
}

// row is what a policy has to reach at a load, of testdata/racks.json.
type row struct {
	Policy  string                `json:"policy"`
	Load    float64               `json:"load"`
	Jobs    int                   `json:"jobs"`
	Against string                `json:"against"` // whose wait the wait is a ratio of
	Ranges  map[string][2]float64 `json:"ranges"`
}

// studySeeds are the two seeds of the experiment. What 60,000 jobs ask for differs by up to 4 % of the load between
// seeds, since few large jobs make most of it. With these, best fit waits about as long as the study tells of its seeds,
// so that its shares of racks and halves can be compared. Waits differ by a factor of a hundred between seeds and by a
// fifth between policies that are alike, so that they are compared over waitSeeds.
var (
	studySeeds = []uint64{1, 5}
	waitSeeds  = []uint64{1, 2, 3, 4, 5, 6, 7, 8}
)

func (r *row) measure(t testing.TB) map[string]float64 {
	t.Helper()
	out := map[string]float64{}
	for _, seed := range studySeeds {
		m := run(t, policyNamed(t, r.Policy), r.Load, r.Jobs, seed)
		for name, v := range map[string]float64{
			"wait": m.Wait, "wait-64+": m.WaitLarge, "extra-racks": m.ExtraRacks, "one-rack-%": 100 * m.OneRack, "one-half-%": 100 * m.OneHalf,
		} {
			out[name] += v / float64(len(studySeeds))
		}
	}
	if r.Against != "" {
		var mine, other float64
		for _, seed := range waitSeeds {
			mine += run(t, policyNamed(t, r.Policy), r.Load, r.Jobs, seed).Wait
			other += run(t, policyNamed(t, r.Against), r.Load, r.Jobs, seed).Wait
		}
		out["wait-ratio"] = mine / other
	}
	return out
}

func rows(t testing.TB, form string) []row {
	t.Helper()
	text, err := os.ReadFile("testdata/racks.json")
	if err != nil {
		t.Fatal(err)
	}
	var forms map[string][]row
	if err := json.Unmarshal(text, &forms); err != nil {
		t.Fatal(err)
	}
	if len(forms[form]) == 0 {
		t.Fatalf("testdata/racks.json has no rows %q", form)
	}
	return forms[form]
}

func (r *row) check(t testing.TB, got map[string]float64) {
	t.Helper()
	for name, within := range r.Ranges {
		if v, ok := got[name]; !ok || v < within[0] || v > within[1] {
			t.Errorf("%s at load %v: %s is %.4f, not from %v to %v", r.Policy, r.Load, name, v, within[0], within[1])
		}
	}
}

// The short form of the experiment; BenchmarkRacks is the whole.
func TestRacks_WithinRanges(t *testing.T) {
	t.Parallel()
	for _, r := range rows(t, "short") {
		t.Run(fmt.Sprintf("%s/%v", r.Policy, r.Load), func(t *testing.T) {
			t.Parallel()
			got := r.measure(t)
			t.Logf("%v", got)
			r.check(t, got)
		})
	}
}

// BenchmarkRacks is the experiment: 60,000 jobs, two seeds, every policy and load. It fails when a bar is missed.
func BenchmarkRacks(b *testing.B) {
	for _, r := range rows(b, "long") {
		b.Run(fmt.Sprintf("policy=%s/load=%v", strings.ReplaceAll(r.Policy, " ", "-"), r.Load), func(b *testing.B) {
			var got map[string]float64
			for b.Loop() {
				got = r.measure(b)
			}
			for _, name := range []string{"wait", "wait-64+", "wait-ratio", "extra-racks", "one-rack-%", "one-half-%"} {
				if v, ok := got[name]; ok {
					b.ReportMetric(v, name)
				}
			}
			b.ReportMetric(0, "ns/op")
			r.check(b, got)
		})
	}
}

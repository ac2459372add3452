package engine

import (
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/heteroflow/heteroflow/internal/accel"
)

// times is what a request asks for, so often.
func times(n float64, r Request) []Asked {
	out := AsksOf(r)
	for i := range out {
		out[i].Weight *= n
	}
	return out
}

// learntSome is a demand of shares and whole cards on nodes of two models.
func learntSome() *Learnt {
	asked := times(60, ask(1, accel.Ask{MemoryMiB: 9000}))
	asked = append(asked, times(30, ask(1, accel.Ask{Count: 2}))...)
	asked = append(asked, times(10, ask(1, accel.Ask{MemoryMiB: 4096, Vendors: []accel.Vendor{accel.Ascend}}))...)
	return Learn(Demand{}.Add(asked).On(snapshotOf(
		testNode{Name: "a", Cards: []testCard{{Model: "A", GiB: 32}, {Model: "A", GiB: 32}}},
		testNode{Name: "b", Cards: []testCard{{Vendor: accel.Ascend, Model: "B", GiB: 16, Form: accel.Whole, Count: 4}}},
	)))
}

func TestAsksOf_OneForEachTaskThatAsks(t *testing.T) {
	t.Parallel()
	r := twice(ask(3, accel.Ask{MemoryMiB: 4096, Vendors: []accel.Vendor{accel.NVIDIA, accel.Ascend}, Models: []string{"B*", "A*"}}))
	r.Groups[0].CPUMHz, r.Groups[0].MemoryMiB = 1000, 501
	r.Groups[0].Tasks = append(r.Groups[0].Tasks, TaskAsk{Name: "asks for nothing"})
	one := Asked{
		Cards: 1, CardMiB: 4096, Vendors: []accel.Vendor{accel.Ascend, accel.NVIDIA}, Patterns: []string{"A*", "B*"}, CPUMHz: 500, MemoryMiB: 250, Weight: 3,
	}
	if diff := cmp.Diff([]Asked{one, one}, AsksOf(r)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if r.Groups[0].Tasks[0].Ask.Models[0] != "B*" {
		t.Error("the request was changed")
	}
}

func TestDemand_AddsUpAndForgets(t *testing.T) {
	t.Parallel()
	small, large := ask(1, accel.Ask{MemoryMiB: 1024}), ask(1, accel.Ask{})
	var d Demand
	d = d.Add(times(10, small)).Add(append(times(20, large), times(5, small)...))
	if d.Observed != 35 || len(d.Asked) != 2 || d.Asked[0].CardMiB != 0 || d.Asked[0].Weight != 20 {
		t.Errorf("got %+v", d)
	}
	if w := d.Asked[1].Weight; w >= 15 || w < 14.9 {
		t.Errorf("15 small ones, 10 of them older, weigh %v", w)
	}
	later := d.Add(times(halfLife, large))
	if w, half := later.Asked[1].Weight, d.Asked[1].Weight/2; math.Abs(w-half) > 1e-9 {
		t.Errorf("after as many others as the half-life is they weigh %v, want %v", w, half)
	}
	if d.Asked[0].Weight != 20 {
		t.Error("adding changed the demand that was added to")
	}
	for mib := range 2 * maxAsked {
		d = d.Add(times(1, ask(1, accel.Ask{MemoryMiB: uint64(5000 + mib)})))
	}
	if len(d.Asked) != maxAsked || d.Asked[0].CardMiB != 0 || d.Check() != nil {
		t.Errorf("%d asks are kept, first %+v, %v", len(d.Asked), d.Asked[0], d.Check())
	}
}

func TestDemand_OnACluster(t *testing.T) {
	t.Parallel()
	shared, whole := testCard{Model: "A", GiB: 80, Used: 60}, testCard{Model: "A", GiB: 79, Form: accel.Whole, Count: 3, Used: 1}
	d := Demand{}.On(snapshotOf(
		testNode{Name: "n1", CPU: 64900, Cards: []testCard{shared, shared, whole}},
		testNode{Name: "n2", CPU: 64100, Cards: []testCard{shared, shared, whole}},
		testNode{Name: "n3", CPU: 64100, Cards: []testCard{shared, {Form: accel.Partition, Model: "A", Partition: " MIG 1g.10gb", GiB: 10, Count: 7}}},
		testNode{Name: "n4"},
	))
	want := Demand{
		Models: []Model{{accel.NVIDIA, "A", 80 << 10}, {accel.NVIDIA, "A MIG 1g.10gb", 10 << 10}},
		Kinds: []Kind{
			{Nodes: 2, CPUMHz: 64000, MemoryMiB: 512 << 10, Cards: []int{5, 0}},
			{Nodes: 1, CPUMHz: 64000, MemoryMiB: 512 << 10, Cards: []int{1, 7}},
		},
	}
	if diff := cmp.Diff(want, d); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestDemand_CheckRefusesWhatNobodyWrote(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"observed":      `{"observed":-1}`,
		"weight":        `{"asked":[{"cards":1,"weight":0}]}`,
		"processor":     `{"asked":[{"cards":1,"weight":1,"cpu_mhz":9999999999}]}`,
		"unknown model": `{"kinds":[{"nodes":1,"cards":[1]}]}`,
		"many nodes":    `{"kinds":[{"nodes":99999999999}]}`,
	} {
		var d Demand
		if err := json.Unmarshal([]byte(text), &d); err != nil {
			t.Fatal(err)
		}
		if d.Check() == nil {
			t.Errorf("%s: %s passes", name, text)
		}
	}
}

func TestLearn_TooLittleIsNothing(t *testing.T) {
	t.Parallel()
	s := snapshotOf(testNode{Name: "n1", Cards: []testCard{{}}})
	if l := Learn(Demand{}.Add(times(learntFrom-1, ask(1, accel.Ask{}))).On(s)); l != nil {
		t.Errorf("learnt from few: %+v", l.Demand())
	}
	if l := Learn(Demand{}.Add(times(1000, ask(1, accel.Ask{})))); l != nil {
		t.Errorf("learnt for no cluster: %+v", l.Demand())
	}
}

// TestPotential_UnlearntIsBestFit: while nothing is learnt every decision is binpack's.
func TestPotential_UnlearntIsBestFit(t *testing.T) {
	t.Parallel()
	before := New(Config{Plugins: []PluginSetting{{Name: "potential"}, {Name: "binpack", Enabled: true, Weight: 1}}})
	rapid.Check(t, func(t *rapid.T) {
		s, r := drawSnapshot(t), drawRequest(t)
		was, is := before.Decide(s, r), New(Config{}).Decide(s, r)
		was.Scores, is.Scores = nil, nil
		if diff := cmp.Diff(was, is); diff != "" {
			t.Fatalf("(-binpack +potential)\n%s", diff)
		}
	})
}

// TestPotential_SameFromItsText: a demand that was written and read decides as the one that was written.
func TestPotential_SameFromItsText(t *testing.T) {
	t.Parallel()
	l := learntSome()
	again := Learn(clone(*l.Demand()))
	rapid.Check(t, func(t *rapid.T) {
		s, r, level := drawSnapshot(t), drawRequest(t), rapid.IntRange(0, 4).Draw(t, "level")
		was, is := New(Config{Learnt: l, Level: level}).Decide(s, r), New(Config{Learnt: again, Level: level}).Decide(s, r)
		if diff := cmp.Diff(was, is); diff != "" {
			t.Fatalf("(-written +read)\n%s", diff)
		}
	})
}

func TestPotential_ScoreFallsStrictlyWithTheCost(t *testing.T) {
	t.Parallel()
	last := math.Inf(1)
	for mib := float64(-100_000); mib < 20_000_000; mib += 997 {
		worth := worthAt(mib)
		if worth >= last || worth <= 0 || worth >= 100 {
			t.Fatalf("at a cost of %v MiB the score is %v, %v before", mib, worth, last)
		}
		last = worth
	}
	if worthAt(0) != 50 {
		t.Errorf("for nothing it is %v", worthAt(0))
	}
}

// decideAfter is where a request goes when the asks were seen before.
func decideAfter(s Snapshot, asked []Asked, r Request) []string {
	return where(s, New(Config{Learnt: Learn(Demand{}.Add(asked).On(s))}).Decide(s, r))
}

// TestPotential_KeepsRoomForWhatIsAsked: best fit takes the fullest card; where all ask for halves, a quarter goes to the
// quarter that no half fits, and a card that is empty stays whole where whole ones are asked for.
func TestPotential_KeepsRoomForWhatIsAsked(t *testing.T) {
	t.Parallel()
	quarter, half, whole := ask(1, accel.Ask{MemoryMiB: 20 << 10}), ask(1, accel.Ask{MemoryMiB: 40 << 10}), ask(1, accel.Ask{})
	s := snapshotOf(testNode{Name: "a", Cards: []testCard{{Used: 20}}}, testNode{Name: "b", Cards: []testCard{{Used: 40}}})
	if got := strings.Join(decideAfter(s, times(100, half), quarter), ", "); got != "a card0×20" {
		t.Errorf("where halves are asked for, a quarter goes to %s, want the card that has one too many", got)
	}
	s = snapshotOf(testNode{Name: "a", Cards: []testCard{{}}}, testNode{Name: "b", Cards: []testCard{{Used: 30}}})
	if got := strings.Join(decideAfter(s, times(100, whole), quarter), ", "); got != "b card0×20" {
		t.Errorf("where whole cards are asked for, a quarter goes to %s, want the broken card", got)
	}
}

// TestPotential_LargeCardsAreDearer: what fits a small card as well leaves the large one alone.
func TestPotential_LargeCardsAreDearer(t *testing.T) {
	t.Parallel()
	s := snapshotOf(testNode{Name: "a", Cards: []testCard{{Model: "big", GiB: 80}}}, testNode{Name: "b", Cards: []testCard{{Model: "small", GiB: 24}}})
	asked := append(times(100, ask(1, accel.Ask{MemoryMiB: 12 << 10})), times(20, ask(1, accel.Ask{MemoryMiB: 60 << 10}))...)
	if got := strings.Join(decideAfter(s, asked, ask(1, accel.Ask{MemoryMiB: 12 << 10})), ", "); got != "b card0×12" {
		t.Errorf("12 GiB go to %s, want the small card", got)
	}
}

// TestDecide_SeveralCardsOfTheModelWorthMost: the cards of one task are of one model, which is not the first by name.
func TestDecide_SeveralCardsOfTheModelWorthMost(t *testing.T) {
	t.Parallel()
	s := snapshotOf(
		testNode{Name: "a", Cards: []testCard{{Model: "A"}, {Model: "A"}, {Model: "A"}}},
		testNode{Name: "b", Cards: []testCard{{Model: "A"}, {Model: "B", Used: 40}, {Model: "B", Used: 40}}},
	)
	d := New(Config{}).Decide(s, ask(1, accel.Ask{Count: 2, MemoryMiB: 40 << 10}))
	if got := strings.Join(where(s, d), ", "); got != "b card2×40 card1×40" {
		t.Errorf("placed at %s, want the cards that it fills", got)
	}
}

package potential

import "testing"

// demandOf is a demand of these shapes, equally often.
func demandOf(shapes ...Shape) *Mix {
	var shares []Share
	for _, p := range shapes {
		shares = append(shares, Share{p, 100})
	}
	return NewMix(shares)
}

func nodeOf(cpu int, model int, cards ...int) State {
	var all []Card
	for _, milli := range cards {
		all = append(all, MakeCard(model, milli))
	}
	return MakeState(cpu, 100_000, all)
}

var (
	single = Shape{CPU: 8000, Memory: 1000, Cards: 1, Milli: Whole}
	share  = Shape{CPU: 4000, Memory: 1000, Cards: 1, Milli: 500}
	eight  = Shape{CPU: 64_000, Memory: 8000, Cards: 8, Milli: Whole}
	pure   = Shape{CPU: 8000, Memory: 1000}
)

// cheaper reports that the shape goes to a before it goes to b.
func cheaper(t *testing.T, l Scorer, p Shape, a, b State) {
	t.Helper()
	costA, _, okA := l.Cost(&a, &p)
	costB, _, okB := l.Cost(&b, &p)
	if !okA || !okB || costA >= costB {
		t.Errorf("%+v costs %v (%v) on %+v and %v (%v) on %+v", p, costA, okA, a, costB, okB, b)
	}
}

func TestPolicy_KnowingNothingIsBestFit(t *testing.T) {
	t.Parallel()
	empty, used := nodeOf(96_000, 0, 1000, 1000, 1000, 1000), nodeOf(96_000, 0, 1000)
	cheaper(t, NewPolicy(), single, used, empty)
	few := learnt(NewMix([]Share{{single, learntFrom - 1}}), []Supply{{empty, 1}})
	cost, _, _ := few.Cost(&empty, &single)
	want, _, _ := BestFit{}.Cost(&empty, &single)
	if cost != want {
		t.Errorf("with few requests observed the cost is %v, best fit's is %v", cost, want)
	}
}

func TestPolicy_WithoutDemandForCardsIsBestFit(t *testing.T) {
	t.Parallel()
	node := nodeOf(96_000, 0, 1000)
	cost, _, _ := learnt(demandOf(pure), []Supply{{node, 1}}).Cost(&node, &single)
	want, _, _ := BestFit{}.Cost(&node, &single)
	if cost != want {
		t.Errorf("cost is %v, best fit's is %v", cost, want)
	}
}

func TestPolicy_TakesProcessorsWhereCardsHaveNoUseForThem(t *testing.T) {
	t.Parallel()
	spare, short := nodeOf(64_000, 0, 1000), nodeOf(8000, 0, 1000)
	cheaper(t, learnt(demandOf(single, pure), []Supply{{nodeOf(64_000, 0, 1000, 1000), 4}}), pure, spare, short)
}

func TestPolicy_SharesAColumnOfACardThatIsBroken(t *testing.T) {
	t.Parallel()
	node := nodeOf(64_000, 0, 1000, 500)
	_, room, ok := learnt(demandOf(single, share), []Supply{{nodeOf(64_000, 0, 1000, 1000), 4}}).Cost(&node, &share)
	if !ok || room.Milli() != 500 {
		t.Errorf("a half goes to the card with %d left, want 500", room.Milli())
	}
}

func TestPolicy_LeavesSoughtModelsAlone(t *testing.T) {
	t.Parallel()
	named := single
	named.Models = 1 << 1
	l := learnt(demandOf(single, named), []Supply{{nodeOf(64_000, 0, 1000, 1000), 4}, {nodeOf(64_000, 1, 1000, 1000), 4}})
	cheaper(t, l, single, nodeOf(64_000, 0, 1000, 1000), nodeOf(64_000, 1, 1000, 1000))
}

func TestPolicy_KeepsPlacesForTheFewThatNeedWholeNodes(t *testing.T) {
	t.Parallel()
	whole := nodeOf(96_000, 0, 1000, 1000, 1000, 1000, 1000, 1000, 1000, 1000)
	broken := nodeOf(84_000, 0, 1000, 1000, 1000, 1000, 1000, 1000, 1000)
	l := learnt(NewMix([]Share{{single, 1000}, {eight, 20}}), []Supply{{whole, 20}})
	for range memory * 20 {
		l.Placed()
		l.Left()
	}
	cheaper(t, l, single, broken, whole)
}

func TestPolicy_DeparturesChangeCostsInFewSteps(t *testing.T) {
	t.Parallel()
	l := NewPolicy()
	for range 10 * memory {
		l.Placed()
	}
	if l.Epoch() != 0 || l.now != filling {
		t.Errorf("nothing left, and costs changed %d times, to %+v", l.Epoch(), l.now)
	}
	for range 10 * memory {
		l.Placed()
		l.Left()
	}
	if l.Epoch() > Levels || l.now != churning {
		t.Errorf("as many leave as come, and costs changed %d times, to %+v", l.Epoch(), l.now)
	}
}

func TestNamedLoads_SpreadOverTheModelsThatAreAccepted(t *testing.T) {
	t.Parallel()
	onlyFirst, either, anyModel := single, single, single
	onlyFirst.Models, either.Models = 1, 3
	supply := []Supply{{nodeOf(0, 0, 1000, 1000), 1}, {nodeOf(0, 1, 1000, 1000), 1}, {nodeOf(0, 2, 1000, 1000, 1000, 1000), 1}}
	// Eight cards at full load: two want the first model, two the first or the second, four any.
	got := namedLoads([]Share{{onlyFirst, 1}, {either, 1}, {anyModel, 2}}, supply)
	want := [3]float64{1, 1, 0}
	for m := range want {
		if d := got[m] - want[m]; d > 0.001 || d < -0.001 {
			t.Errorf("load of model %d is %.3f, want %.3f", m, got[m], want[m])
		}
	}
}

func TestSlotPrices_ScarcePlacesAreDear(t *testing.T) {
	t.Parallel()
	hungry := eight
	hungry.CPU = 120_000
	cards := []int{1000, 1000, 1000, 1000, 1000, 1000, 1000, 1000}
	prices := slotPrices([]Share{{single, 1}, {eight, 1}, {hungry, 1}}, []Supply{{nodeOf(96_000, 0, cards...), 9}, {nodeOf(128_000, 0, cards...), 1}})
	if len(prices) != 2 || prices[0].Weight*9.99 > prices[1].Weight {
		t.Errorf("prices are %+v, want ten times as much for what fits on one node in ten", prices)
	}
}

func TestRegime_BeginsAtALevelAndHoldsIt(t *testing.T) {
	t.Parallel()
	for level := range Levels + 1 {
		r := NewRegime(level)
		r.Placed()
		if r.Level() != level {
			t.Errorf("one that begins at level %d is at %d after one placement", level, r.Level())
		}
	}
	if high, low := NewRegime(99), NewRegime(-1); high.Level() != Levels || low.Level() != 0 {
		t.Errorf("levels %d and %d, want the nearest that there is", high.Level(), low.Level())
	}
}

// TestPolicy_CostOnTheChosenCardIsTheCost: what Cost finds best costs as much when it is asked for by itself, and no
// other card costs less.
func TestPolicy_CostOnTheChosenCardIsTheCost(t *testing.T) {
	t.Parallel()
	l := learnt(demandOf(single, share, pure), []Supply{{nodeOf(64_000, 0, 1000, 1000), 4}})
	for level := range Levels + 1 {
		l.SetLevel(level)
		for _, node := range []State{nodeOf(64_000, 0, 1000, 1000, 700, 500, 200), nodeOf(9000, 1, 1000, 600)} {
			for _, p := range []Shape{share, single, {CPU: 100, Cards: 2, Milli: 400}, {Cards: 2, Milli: Whole}} {
				best, room, fits := l.Cost(&node, &p)
				found := false
				for _, c := range node.Cards {
					cost, ok := l.CostOn(&node, &p, c)
					if c == 0 || !ok {
						continue
					}
					found = true
					if cost < best || c == room && cost != best {
						t.Errorf("%+v costs %v on card %d of %v, %v on the best, %d", p, cost, c.Milli(), node, best, room.Milli())
					}
				}
				if found != fits {
					t.Errorf("%+v on %v: a card is found: %v, it fits: %v", p, node, found, fits)
				}
			}
		}
	}
}

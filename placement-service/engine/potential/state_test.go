package potential

import (
	"math/rand/v2"
	"testing"
)

// anyShape and anyState are requests and nodes of all kinds, small numbers of each so that they meet often.
func anyShape(r *rand.Rand) Shape {
	p := Shape{CPU: int32(r.IntN(4) * 2000), Memory: int32(r.IntN(3) * 1024), Milli: Whole}
	switch r.IntN(6) {
	case 0:
		p.Milli = 0
	case 1, 2:
		p.Cards, p.Milli = 1, int16([]int{190, 470, 810}[r.IntN(3)])
	case 3:
		p.Cards, p.Milli = int16(2+r.IntN(2)), 500
	default:
		p.Cards = int16([]int{1, 1, 2, 4, 8}[r.IntN(5)])
	}
	if p.Cards > 0 && r.IntN(4) == 0 {
		p.Models = uint64(1 + r.IntN(7))
	}
	return p
}

func anyState(r *rand.Rand) State {
	var cards []Card
	model := r.IntN(3)
	for range r.IntN(9) {
		if r.IntN(10) == 0 {
			model = r.IntN(3)
		}
		cards = append(cards, MakeCard(model, []int{1000, 1000, 1000, 810, 530, 190, 0}[r.IntN(7)]))
	}
	return MakeState(r.IntN(20)*1000, r.IntN(20)*512, cards)
}

func TestMakeState_OrderOfCardsDoesNotMatter(t *testing.T) {
	t.Parallel()
	a := MakeState(1, 2, []Card{MakeCard(1, 500), MakeCard(0, 1000), MakeCard(2, 0)})
	b := MakeState(1, 2, []Card{MakeCard(0, 1000), MakeCard(7, 0), MakeCard(1, 500)})
	if a != b {
		t.Errorf("%+v and %+v differ", a, b)
	}
}

func TestMakeState_MoreCardsThanAreToldApart(t *testing.T) {
	t.Parallel()
	var cards []Card
	for i := range MaxCards + 3 {
		cards = append(cards, MakeCard(0, 100+i))
	}
	s := MakeState(0, 0, cards)
	if got := s.Cards[MaxCards-1].Milli(); got != 103 {
		t.Errorf("the card with least room has %d, want 103: those with most room are kept", got)
	}
}

func TestPlace_TakesExactlyWhatWasAsked(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(3, 4))
	placed := 0
	for range 50_000 {
		s, p := anyState(r), anyShape(r)
		s.rooms(&p, func(room Card) {
			placed++
			after := s.Place(&p, room)
			if p.Cards > 0 {
				taken := s.Taken(&p, room)
				if len(taken) != int(p.Cards) || taken[len(taken)-1] != room {
					t.Fatalf("%+v on %+v: takes %v, room %v", p, s, taken, room)
				}
				for _, c := range taken {
					if c.Model() != room.Model() || c.Milli() < int(p.Milli) || !p.accepts(c.Model()) {
						t.Fatalf("%+v on %+v: takes %d of model %d", p, s, c.Milli(), c.Model())
					}
				}
			}
			if got := sum(&s) - sum(&after); got != p.Demand() {
				t.Fatalf("%+v on %+v: %d thousandths gone, want %d", p, s, got, p.Demand())
			}
			if after.CPU != s.CPU-p.CPU || after.Memory != s.Memory-p.Memory || after.CPU < 0 || after.Memory < 0 {
				t.Fatalf("%+v on %+v: left %+v", p, s, after)
			}
			if again := MakeState(int(after.CPU), int(after.Memory), after.Cards[:]); again != after {
				t.Fatalf("%+v is not in order", after)
			}
		})
	}
	if placed < 10_000 {
		t.Errorf("only %d placements", placed)
	}
}

func sum(s *State) int {
	n := 0
	for _, c := range s.Cards {
		n += c.Milli()
	}
	return n
}

func TestSlots_AreHowOftenTheShapeFits(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(5, 6))
	for range 50_000 {
		s, p := anyState(r), anyShape(r)
		if p.Cards > 1 && p.Milli < Whole {
			continue // places for shares of several cards are counted by what the cards hold in all, not packed
		}
		want := 0
		for now := s; p.Cards > 0; want++ {
			room, ok := now.fullest(&p)
			if !ok {
				break
			}
			now = now.Place(&p, room)
		}
		if got := s.slots(&p); got != want {
			t.Fatalf("%+v on %+v: %d places, want %d", p, s, got, want)
		}
	}
}

func TestFill_TheFastWayIsTheSlowWay(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(7, 8))
	var demand []Share
	for i := range 30 {
		demand = append(demand, Share{anyShape(r), float64(30 - i)})
	}
	d := newDeck(demand)
	compared := 0
	for range 3_000 {
		s := anyState(r)
		if set := s.models(); set == 0 || set&(set-1) != 0 {
			continue
		}
		compared++
		if got, want := d.fill(&s), d.fillMixed(&s); got != want {
			t.Fatalf("%+v: fill %v, want %v", s, got, want)
		}
	}
	if compared < 1000 {
		t.Errorf("only %d compared", compared)
	}
}

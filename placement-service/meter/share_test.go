package meter

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/internal/store"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func at(seconds float64) time.Time {
	return noon.Add(time.Duration(seconds * float64(time.Second))).Truncate(time.Microsecond)
}

// alloc is the id of an allocation of the test, backend that of its engine in a registry.
func alloc(name string) string {
	sum := sha256.Sum256([]byte(name))
	h := hex.EncodeToString(sum[:])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:32]
}

func backend(name string) string { return "_nomad-task-" + alloc(name) + "-serve-llm-http" }

func count(n int64) *int64 { return &n }

func request(of, key string, from, to float64, prompt, cached, completion int64) store.Work {
	return store.Work{
		Backend: backend(of), User: store.User{Tenant: "t-" + key, KeyID: key, Model: "m"}, Prompt: count(prompt), Cached: count(cached), Completion: count(completion),
		Began: at(from), Duration: at(to).Sub(at(from)),
	}
}

// seconds adds up shares by key; the job's own are under its tenant.
func seconds(uses []store.CardUse) map[string]float64 {
	out := map[string]float64{}
	for _, u := range uses {
		name := u.KeyID
		if name == "" {
			name = u.Tenant
		}
		out[name] += float64(u.Micros) / 1e6
	}
	return out
}

func TestSplit(t *testing.T) {
	t.Parallel()
	card := func(units, perCard int64, from, to float64) store.CardSpan {
		return store.CardSpan{Tenant: "owner", JobID: "llm", AllocID: alloc("a"), Group: "nvidia/gpu/A100", Units: units, UnitsACard: perCard, Began: at(from), Ended: at(to)}
	}
	for name, c := range map[string]struct {
		spans []store.CardSpan
		work  []store.Work
		want  map[string]float64
	}{
		"nobody asked":               {[]store.CardSpan{card(2, 1, 0, 300)}, nil, map[string]float64{"owner": 600}},
		"a share of a card":          {[]store.CardSpan{card(20, 80, 0, 300)}, nil, map[string]float64{"owner": 75}},
		"it goes on":                 {[]store.CardSpan{{Tenant: "owner", AllocID: alloc("a"), Units: 1, UnitsACard: 1, Began: at(-900)}}, nil, map[string]float64{"owner": 300}},
		"while a request ran":        {[]store.CardSpan{card(1, 1, 0, 300)}, []store.Work{request("a", "k", 100, 140, 10, 0, 10)}, map[string]float64{"owner": 260, "k": 40}},
		"answers count twice":        {[]store.CardSpan{card(1, 1, 0, 300)}, []store.Work{request("a", "k", 0, 300, 100, 0, 0), request("a", "l", 0, 300, 0, 0, 100)}, map[string]float64{"k": 100, "l": 200}},
		"cached tokens do not count": {[]store.CardSpan{card(1, 1, 0, 300)}, []store.Work{request("a", "k", 0, 300, 1000, 900, 0), request("a", "l", 0, 300, 100, 0, 0)}, map[string]float64{"k": 150, "l": 150}},
		"a part of a request":        {[]store.CardSpan{card(1, 1, 0, 300)}, []store.Work{request("a", "k", -300, 300, 200, 0, 0), request("a", "l", 0, 300, 100, 0, 0)}, map[string]float64{"k": 150, "l": 150}},
		"of another allocation":      {[]store.CardSpan{card(1, 1, 0, 300)}, []store.Work{request("b", "k", 0, 300, 1, 0, 1)}, map[string]float64{"owner": 300}},
		"before the card came":       {[]store.CardSpan{card(1, 1, 100, 200)}, []store.Work{request("a", "k", 0, 150, 1, 0, 1)}, map[string]float64{"owner": 50, "k": 50}},
		"no tokens are known: by the time it took": {
			[]store.CardSpan{card(1, 1, 0, 300)},
			[]store.Work{{Backend: backend("a"), User: store.User{KeyID: "k"}, Began: at(0), Duration: 100 * time.Second}, {Backend: backend("a"), User: store.User{KeyID: "l"}, Began: at(0), Duration: 200 * time.Second}},
			map[string]float64{"owner": 100, "k": 200. / 3, "l": 400. / 3},
		},
		"a moment only": {[]store.CardSpan{card(1, 1, 0, 300)}, []store.Work{request("a", "k", 10, 10, 0, 0, 0)}, map[string]float64{"owner": 300 - 1e-6, "k": 1e-6}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShares(at(0), at(300))
			for _, w := range c.work {
				s.add(w)
			}
			near := cmp.Comparer(func(a, b float64) bool { return a-b < 1e-4 && b-a < 1e-4 })
			if diff := cmp.Diff(c.want, seconds(s.split(c.spans)), near); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// PW07: 4 cards, then 1; 1, then 4; one model of card, then another. What was held is the exact integral, and each model
// of card has its own part, so that each can have its own price.
func TestPW07_TheShapeChangesInTheHour(t *testing.T) {
	t.Parallel()
	span := func(group string, cards int64, from, to float64) store.CardSpan {
		return store.CardSpan{Tenant: "t", JobID: "j", AllocID: "a" + fmt.Sprint(from), Group: group, Units: cards, UnitsACard: 1, Began: at(from), Ended: at(to)}
	}
	const a, h = "nvidia/gpu/A100", "nvidia/gpu/H100"
	for name, c := range map[string]struct {
		spans []store.CardSpan
		want  map[string]int64 // card seconds by group
	}{
		"4 to 1":       {[]store.CardSpan{span(a, 4, 0, 3000), span(a, 1, 3000, 3600)}, map[string]int64{a: 12600}},
		"1 to 4":       {[]store.CardSpan{span(a, 1, 0, 3000), span(a, 4, 3000, 3600)}, map[string]int64{a: 5400}},
		"A100 to H100": {[]store.CardSpan{span(a, 1, 0, 2700), span(h, 1, 2700, 3600)}, map[string]int64{a: 2700, h: 900}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := map[string]int64{}
			for from := noon; from.Before(noon.Add(time.Hour)); from = from.Add(Window) {
				for _, u := range newShares(from, from.Add(Window)).split(c.spans) {
					got[u.Group] += u.Micros
				}
			}
			for group, n := range c.want {
				c.want[group] = n * 1e6
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// TestSplit_NothingIsLost: whatever is held and asked, and wherever the time is cut, the shares of all add up to what was
// held, to the microsecond.
func TestSplit_NothingIsLost(t *testing.T) {
	t.Parallel()
	rounds := 3000
	if testing.Short() {
		rounds = 300
	}
	for seed := range rounds {
		r := rand.New(rand.NewPCG(7, uint64(seed)))
		moment := func() time.Time {
			return noon.Add(time.Duration(r.Int64N(int64(20*time.Minute)/1000)) * time.Microsecond)
		}
		var spans []store.CardSpan
		want := int64(0)
		end := noon.Add(20 * time.Minute)
		for n := range 1 + r.IntN(6) {
			s := store.CardSpan{
				Tenant: fmt.Sprint("o", n), AllocID: alloc(fmt.Sprint("a", r.IntN(3))), Group: fmt.Sprint("g", r.IntN(2)),
				Units: 1 + r.Int64N(99), UnitsACard: 1 + r.Int64N(99), Began: moment(),
			}
			if s.Ended = moment(); s.Ended.Before(s.Began) || r.IntN(4) == 0 {
				s.Ended = time.Time{}
			}
			spans = append(spans, s)
			want += s.Until(end)
		}
		var work []store.Work
		for range r.IntN(40) {
			w := request(fmt.Sprint("a", r.IntN(4)), fmt.Sprint("k", r.IntN(5)), 0, 0, r.Int64N(1000), r.Int64N(500), r.Int64N(1000))
			w.Began, w.Duration = moment(), time.Duration(r.Int64N(int64(time.Minute)))
			if r.IntN(5) == 0 {
				w.Prompt, w.Completion = nil, nil
			}
			work = append(work, w)
		}
		cuts := []time.Time{noon, end}
		for range r.IntN(8) {
			cuts = append(cuts, moment())
		}
		slices.SortFunc(cuts, time.Time.Compare)
		got := int64(0)
		for i := 1; i < len(cuts); i++ {
			s := newShares(cuts[i-1], cuts[i])
			for _, w := range work {
				s.add(w)
			}
			for _, u := range s.split(spans) {
				if u.Micros <= 0 {
					t.Fatalf("seed %d: a share of %d", seed, u.Micros)
				}
				got += u.Micros
			}
		}
		if got != want {
			t.Fatalf("seed %d: %d µs were held, %d shared out", seed, want, got)
		}
	}
}

// What is left over by a division goes into the next share: nobody is off by a microsecond or more, however many share.
func TestByWork_RemainderIsCarried(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		work, all := map[store.User]uint64{}, uint64(0)
		for n := range 1 + r.IntN(50) {
			work[store.User{KeyID: fmt.Sprint("k", n)}] = 1 + r.Uint64N(1e12)
		}
		for _, n := range work {
			all += n
		}
		amount, sum := 1+r.Int64N(1e12), int64(0)
		for _, u := range byWork(store.CardUse{}, amount, work) {
			exact := float64(amount) * float64(work[u.User]) / float64(all)
			if off := float64(u.Micros) - exact; off >= 1.01 || off <= -1.01 {
				t.Fatalf("%d of %d: exact is %f", u.Micros, amount, exact)
			}
			sum += u.Micros
		}
		if sum != amount {
			t.Fatalf("%d of %d", sum, amount)
		}
	}
}

package hold

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func ticket(tenant, key string, priority, tokens int) *Ticket {
	return &Ticket{request: Request{Tenant: tenant, Key: key, Priority: priority, Tokens: tokens}}
}

// Whoever comes and goes: each ticket comes out once or was taken out, and of one key's the higher priority first, then the
// older.
func TestOrder_EachOnceAndByPriorityWithinAKey(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var o order
		in := map[*Ticket]bool{}
		var out []*Ticket
		pop := func() {
			got := o.pop()
			if (got == nil) != (len(in) == 0) {
				t.Fatalf("%d wait, and pop gives %v", len(in), got)
			}
			if got == nil {
				return
			}
			if !in[got] {
				t.Fatal("one came out that does not wait")
			}
			for other := range in {
				if other == got || other.request.Tenant != got.request.Tenant || other.request.Key != got.request.Key {
					continue
				}
				if other.request.Priority > got.request.Priority || other.request.Priority == got.request.Priority && other.seq < got.seq {
					t.Fatalf("%+v before %+v", got, other)
				}
			}
			delete(in, got)
			out = append(out, got)
		}
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0, 1:
				one := ticket(rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "tenant"), rapid.SampledFrom([]string{"x", "y"}).Draw(t, "key"),
					rapid.IntRange(0, 3).Draw(t, "priority"), rapid.IntRange(0, 5000).Draw(t, "tokens"))
				o.push(one)
				in[one] = true
			case 2:
				pop()
			default:
				for one := range in {
					o.remove(one)
					delete(in, one)
					break
				}
			}
			if o.len() != len(in) {
				t.Fatalf("%d wait, counted %d", len(in), o.len())
			}
		}
		for len(in) > 0 {
			pop()
		}
		if pop(); o.root.below != nil {
			t.Fatal("an empty queue keeps somebody's counter")
		}
	})
}

// While all have somebody waiting, no tenant is ahead of another by more than one request of each, whatever the number of
// their keys and the length of their queues; and no key of a tenant is ahead of another.
func TestOrder_FairBetweenTenantsAndKeys(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var o order
		const most = 4000
		size := map[string]int{}
		keysOf := map[string]int{}
		for i := range rapid.IntRange(2, 4).Draw(t, "tenants") {
			name := fmt.Sprint("t", i)
			keysOf[name] = rapid.IntRange(1, 4).Draw(t, "keys")
			size[name] = rapid.IntRange(1, most).Draw(t, "tokens")
			for n := range 130 {
				o.push(ticket(name, fmt.Sprint("k", n%keysOf[name]), 0, size[name]))
			}
		}
		served, byKey := map[string]int{}, map[string]int{}
		for range 120 {
			got := o.pop()
			served[got.request.Tenant] += got.request.Tokens + perRequest
			byKey[got.request.Tenant+got.request.Key] += got.request.Tokens + perRequest
			for a := range size {
				for b := range size {
					if d := served[a] - served[b]; d > size[a]+perRequest {
						t.Fatalf("%s is %d tokens ahead of %s", a, d, b)
					}
				}
				for i := range keysOf[a] {
					for j := range keysOf[a] {
						if d := byKey[fmt.Sprint(a, "k", i)] - byKey[fmt.Sprint(a, "k", j)]; d > size[a]+perRequest {
							t.Fatalf("a key of %s is %d tokens ahead of another", a, d)
						}
					}
				}
			}
		}
	})
}

// One that comes late is level with the others: it neither waits for what they had nor makes up for when it was not there.
func TestOrder_WhoComesLateIsLevel(t *testing.T) {
	t.Parallel()
	var o order
	for range 100 {
		o.push(ticket("early", "k", 0, 1000))
	}
	for range 50 {
		o.pop()
	}
	for range 20 {
		o.push(ticket("late", "k", 0, 1000))
	}
	got := map[string]int{}
	for range 20 {
		got[o.pop().request.Tenant]++
	}
	if got["late"] < 9 || got["late"] > 11 {
		t.Errorf("of 20 the late one got %d", got["late"])
	}
}

// What an answer cost counts too: a key with long answers gets fewer turns.
func TestOrder_AnswersCount(t *testing.T) {
	t.Parallel()
	var o order
	for range 100 {
		o.push(ticket("short", "k", 0, 100))
		o.push(ticket("long", "k", 0, 100))
	}
	got := map[string]int{}
	for range 40 {
		one := o.pop()
		got[one.request.Tenant]++
		if one.request.Tenant == "long" {
			o.charge(&one.request, 2000)
		}
	}
	if got["long"] > 5 || got["short"] < 35 {
		t.Errorf("turns: %v", got)
	}
}

// G19: how much a noisy tenant asks for makes no difference to another that stays within its share: its waits at twenty times
// what the backends take are those at twice, within a tenth.
func TestG19_NoiseOfOneTenantIsNotAnothersWait(t *testing.T) {
	t.Parallel()
	const slots, work = 32, 2.0 // places, and seconds in one
	type running struct {
		until float64
		t     *Ticket
	}
	wait := func(overload float64) float64 {
		rnd := rand.New(rand.NewPCG(7, 9)) //nolint:gosec // a test's arrivals
		var o order
		came := map[*Ticket]float64{}
		var busy []running
		var waits []float64
		now, quiet, noisy := 0.0, 0.0, 0.0
		for now < 600 {
			now = min(quiet, noisy)
			end := -1
			for i, r := range busy {
				if r.until <= now && (end < 0 || r.until < busy[end].until) {
					end = i
				}
			}
			switch {
			case end >= 0:
				now = busy[end].until
				o.charge(&busy[end].t.request, 400)
				busy = slices.Delete(busy, end, end+1)
			case now == quiet:
				one := ticket("quiet", "k", 0, 1000)
				came[one] = now
				o.push(one)
				quiet += rnd.ExpFloat64() / (slots / work / 4) // a quarter of all there is
			default:
				one := ticket("noisy", fmt.Sprint(rnd.IntN(50)), 100, 1000)
				if o.len() < 5000 {
					o.push(one)
				}
				noisy += rnd.ExpFloat64() / (overload * slots / work)
			}
			for len(busy) < slots && o.len() > 0 {
				one := o.pop()
				if one.request.Tenant == "quiet" {
					waits = append(waits, now-came[one])
				}
				busy = append(busy, running{now + work*(0.5+rnd.Float64()), one})
			}
		}
		slices.Sort(waits)
		return waits[len(waits)*95/100]
	}
	twice, twenty := wait(2), wait(20)
	t.Logf("p95 of the quiet tenant's wait: %.3f s at twice, %.3f s at twenty times", twice, twenty)
	const prefill = 0.5 // s, of the time to the first token
	if (twenty+prefill)/(twice+prefill) > 1.1 {
		t.Errorf("noise makes the quiet tenant wait: %.3f s instead of %.3f s", twenty, twice)
	}
}

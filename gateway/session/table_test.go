package session

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// TestTable_LookupCascade: every level is written, and the first level that knows answers; so turn 2, which has an
// answer to hash, is found by what it shares with turn 1.
func TestTable_LookupCascade(t *testing.T) {
	t.Parallel()
	table := NewTable(100, time.Hour)
	opening := Keys{LevelOpening: 5}
	table.Put(opening, "a", 0, noon)
	second := Keys{LevelAnswered: 4, LevelOpening: 5}
	if f, ok := table.Find(second, noon); !ok || f.Backend != "a" || f.Level != LevelOpening {
		t.Errorf("turn 2: %+v, %v", f, ok)
	}
	table.Put(second, "a", 0, noon)
	table.Put(opening, "b", 0, noon) // another conversation with the same opening
	if f, _ := table.Find(second, noon); f.Backend != "a" || f.Level != LevelAnswered {
		t.Errorf("turn 3: %+v", f)
	}
	all := Keys{1, 2, 3, 4, 5}
	table.Put(all, "c", 0, noon)
	for level, k := range all {
		one := Keys{}
		one[level] = k
		if f, _ := table.Find(one, noon); f.Backend != "c" {
			t.Errorf("level %d: %q, every level must be written", level, f.Backend)
		}
	}
	if _, ok := table.Find(Keys{LevelUser: 99}, noon); ok {
		t.Error("a session never seen was found")
	}
}

func TestTable_BoundedAndForgetful(t *testing.T) {
	t.Parallel()
	table := NewTable(1000, time.Hour)
	for i := range 100_000 {
		table.Put(Keys{LevelUser: Key(i + 1)}, "a", 0, noon)
	}
	if table.Len() != 1000 || len(table.pins.nodes) > 1001+int(Levels) {
		t.Errorf("%d pins in %d nodes, want 1000", table.Len(), len(table.pins.nodes))
	}
	last := Keys{LevelUser: 100_000}
	if _, ok := table.Find(last, noon.Add(time.Hour-1)); !ok {
		t.Error("the latest pin is gone")
	}
	if _, ok := table.Find(last, noon.Add(time.Hour)); ok {
		t.Error("a pin outlived its time")
	}
	table.Put(Keys{LevelUser: 1}, "a", 0, noon.Add(2*time.Hour))
	if table.Len() != 1 {
		t.Errorf("%d pins, want the one that is not too old", table.Len())
	}
	table.Put(Keys{LevelUser: 2}, "b", 0, noon.Add(2*time.Hour))
	table.Drop("a")
	if _, ok := table.Find(Keys{LevelUser: 1}, noon.Add(2*time.Hour)); ok || table.Len() != 1 {
		t.Error("a pin outlived its backend")
	}
}

func TestTable_ForgetLeavesLaterPins(t *testing.T) {
	t.Parallel()
	table := NewTable(10, time.Hour)
	mark := table.Put(Keys{1, 2, 3}, "a", 0, noon)
	table.Put(Keys{LevelCacheKey: 2}, "b", 0, noon)
	table.Put(Keys{LevelUser: 3}, "a", 0, noon)
	table.Forget(Keys{1, 2, 3}, "a", mark)
	if _, ok := table.Find(Keys{1}, noon); ok {
		t.Error("the pin of a request that never got there is kept")
	}
	if f, _ := table.Find(Keys{LevelCacheKey: 2}, noon); f.Backend != "b" {
		t.Errorf("a later pin was forgotten: %q", f.Backend)
	}
	if f, _ := table.Find(Keys{LevelUser: 3}, noon); f.Backend != "a" {
		t.Errorf("a pin that another request used since was forgotten: %q", f.Backend)
	}
}

// TestTable_KeptPinsAreToldNowAndThen: a session that stays where it is costs the others a message each quarter of the
// time, so that it does not expire there.
func TestTable_KeptPinsAreToldNowAndThen(t *testing.T) {
	t.Parallel()
	table, other := NewTable(10, time.Hour), NewTable(10, time.Hour)
	var mark uint64
	told := 0
	for minute := range 180 {
		now := noon.Add(time.Duration(minute) * time.Minute)
		table.Put(Keys{1}, "a", 0, now)
		var pins []Pin
		pins, mark = table.Changes(mark)
		told += len(pins)
		other.Merge(pins, 0, now)
		if _, ok := other.Find(Keys{1}, now); !ok {
			t.Fatalf("minute %d: expired at the other instance", minute)
		}
	}
	if told == 0 || told > 13 {
		t.Errorf("told %d times in three hours, want about one each quarter", told)
	}
}

// Whatever each instance does and whenever they exchange: after a last exchange all know the same, and nothing that
// came from another is told again.
func TestTable_InstancesAgree(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		const n = 3
		var tables [n]*Table
		var marks [n]uint64
		for i := range tables {
			tables[i] = NewTable(1000, time.Hour)
		}
		now := noon
		exchange := func(i int) {
			var pins []Pin
			pins, marks[i] = tables[i].Changes(marks[i])
			for j := range tables {
				if j != i {
					tables[j].Merge(pins, 0, now)
				}
			}
			if again, _ := tables[i].Changes(marks[i]); len(again) != 0 {
				t.Fatalf("told twice: %v", again)
			}
		}
		set := map[Key]bool{}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			i := rapid.IntRange(0, n-1).Draw(t, "instance")
			if rapid.IntRange(0, 4).Draw(t, "step") == 0 {
				exchange(i)
				continue
			}
			now = now.Add(time.Duration(rapid.IntRange(0, 1).Draw(t, "later")))
			k := Key(rapid.IntRange(1, 6).Draw(t, "key"))
			set[k] = true
			tables[i].Put(Keys{k}, rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "backend"), 0, now)
		}
		for i := range tables {
			exchange(i)
		}
		for k := range set {
			where := [n]string{}
			for i := range tables {
				f, _ := tables[i].Find(Keys{k}, now)
				where[i] = f.Backend
			}
			if where[0] != where[1] || where[1] != where[2] || where[0] == "" {
				t.Fatalf("key %d: %v", k, where)
			}
		}
	})
}

func TestMerge_RefusesWhatIsOldOrAhead(t *testing.T) {
	t.Parallel()
	table := NewTable(10, time.Hour)
	table.Put(Keys{1}, "a", 0, noon)
	table.Merge([]Pin{{1, "b", noon.Add(-time.Second), 0}, {2, "b", noon.Add(-time.Hour), 0}, {3, "b", noon.Add(time.Hour), 0}, {0, "b", noon, 0}}, 0, noon)
	if f, _ := table.Find(Keys{1}, noon); f.Backend != "a" {
		t.Errorf("an older pin won: %s", f.Backend)
	}
	if _, ok := table.Find(Keys{3}, noon.Add(time.Hour)); ok || table.Len() != 2 {
		t.Errorf("a clock that is ahead keeps its pins longer: %d pins", table.Len())
	}
}

// The index against a plain model: it never holds more than its capacity, and what it holds of a chain it has a beginning of.
func TestIndex_HoldsBeginnings(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		capacity := rapid.IntRange(1, 60).Draw(t, "capacity")
		x := NewIndex(capacity)
		chain := func(session, blocks int) []Block {
			var c []Block
			for i := range blocks {
				hash := uint64(session*100 + i)
				if i < 2 {
					hash = uint64(i + 1) // all sessions begin alike
				}
				c = append(c, Block{Hash: hash, Tokens: (i + 1) * 4})
			}
			return c
		}
		for range rapid.IntRange(1, 40).Draw(t, "requests") {
			c := chain(rapid.IntRange(1, 5).Draw(t, "session"), rapid.IntRange(0, 12).Draw(t, "blocks"))
			x.Add(c, noon)
			if x.Tokens() > capacity || x.Tokens() != 4*x.blocks.len() {
				t.Fatalf("%d tokens in %d blocks, capacity %d", x.Tokens(), x.blocks.len(), capacity)
			}
			blocks, tokens := x.Match(c)
			if fits := min(len(c), capacity/4); blocks != fits || tokens != 4*fits {
				t.Fatalf("%d blocks, %d tokens of a chain of %d just sent; capacity %d", blocks, tokens, len(c), capacity)
			}
			for session := 1; session <= 5; session++ {
				whole := chain(session, 12)
				run, _ := x.Match(whole)
				for _, b := range whole[run:] {
					if _, ok := x.blocks.get(b.Hash); ok {
						t.Fatalf("block %d is held without its beginning", b.Hash)
					}
				}
			}
		}
	})
}

func TestIndex_Remove(t *testing.T) {
	t.Parallel()
	x := NewIndex(100)
	c := []Block{{1, 10}, {2, 20}, {3, 30}}
	x.Add(c, noon)
	x.Remove(c[1:])
	if blocks, tokens := x.Match(c); blocks != 1 || tokens != 10 || x.Tokens() != 10 {
		t.Errorf("%d blocks, %d tokens, %d held", blocks, tokens, x.Tokens())
	}
}

// The list against a plain model.
func TestLRU(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		l := newLRU[string]()
		var order []uint64 // newest first
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			key := uint64(rapid.IntRange(1, 8).Draw(t, "key"))
			at := -1
			for i, k := range order {
				if k == key {
					at = i
				}
			}
			if rapid.Bool().Draw(t, "remove") {
				if _, ok := l.remove(key); ok != (at >= 0) {
					t.Fatalf("remove %d: %v", key, ok)
				}
				if at >= 0 {
					order = append(order[:at:at], order[at+1:]...)
				}
			} else {
				v, had := l.use(key)
				if had != (at >= 0) || had && *v != fmt.Sprint(key) {
					t.Fatalf("use %d: %v %q", key, had, *v)
				}
				*v = fmt.Sprint(key)
				if at >= 0 {
					order = append(order[:at:at], order[at+1:]...)
				}
				order = append([]uint64{key}, order...)
			}
			var got []uint64
			l.fromNewest(func(key uint64, _ *string) bool { got = append(got, key); return true })
			if diff := cmp.Diff(append([]uint64(nil), order...), got); diff != "" {
				t.Fatalf("(-want +got):\n%s", diff)
			}
			last, _, ok := l.last()
			if ok != (len(order) > 0) || ok && last != order[len(order)-1] {
				t.Fatalf("last: %d %v of %v", last, ok, order)
			}
		}
	})
}

package limit

import (
	"testing"
	"time"

	"github.com/heteroflow/heteroflow/internal/store"
)

// FuzzApply: whatever a state says, a report is answered, what is handed out is never more than the limit leaves, and
// the state that is left can be read.
func FuzzApply(f *testing.F) {
	f.Add("", int64(10), int64(3), int64(1))
	f.Add(`{"s":[{"t":1772366400,"r":5,"k":7}],"h":{"g2":{"u":1772366460000,"q":3,"a":[1,2,3,4,5]}},"d":[0,0,0,0,0]}`, int64(10), int64(3), int64(1))
	f.Add(`{"s":[{"t":5},{"t":4}]}`, int64(0), int64(-1), int64(9))
	f.Add(`{"h":{"g1":{"u":-1,"a":[-5,-5,-5,-5,-5]}}}`, int64(1), int64(1), int64(1))
	f.Fuzz(func(t *testing.T, text string, most, want, keep int64) {
		most, want, keep = most%1e9, want%1e9, max(0, keep%1e9)
		a := store.Allowance{LimitID: "l", State: text}
		r := report{
			instance: "g1", seq: 1, now: epoch, caps: caps{most, most, most, most, most}, month: store.MonthOf(epoch),
			slots: []slot{{At: epoch.Unix(), Requests: 1, Tokens: 2}}, keep: amounts{keep, keep, keep, keep, keep}, want: amounts{want, want, want, want, want},
		}
		got := apply(&a, r)
		for k := range kinds {
			if got.held[k] > max(keep, most) && most >= 0 {
				t.Errorf("%v: %d are held of %d, %d were", k, got.held[k], most, keep)
			}
		}
		if left := decode(a.State); left.Holds["g1"].Seq < 1 {
			t.Errorf("the state that is left cannot be read: %s", a.State)
		}
		again := a
		if apply(&again, r); again.Spent != a.Spent || len(decode(again.State).Slots) != len(decode(a.State).Slots) {
			t.Errorf("a report that is told twice is counted twice: %s", again.State)
		}
	})
}

// TestDecode_ABrokenStateIsAnEmptyOne: it rights itself within a minute, where an error would stop a key for ever.
func TestDecode_ABrokenStateIsAnEmptyOne(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "null", "{", `{"s":5}`, `{"s":[{"t":5},{"t":4}]}`} {
		if s := decode(text); len(s.Slots) != 0 || len(s.Holds) != 0 {
			t.Errorf("%q is %+v", text, s)
		}
	}
}

func TestRing_ForgetsAfterAMinute(t *testing.T) {
	t.Parallel()
	var r ring
	r.add(100, 1, 10)
	r.add(100, 1, 10)
	r.add(164, 5, 50)
	r.add(100, 9, 90) // too late
	r.add(150, 3, 30)
	total := slot{}
	for _, s := range r {
		total.Requests += s.Requests
		total.Tokens += s.Tokens
	}
	if total.Requests != 8 || total.Tokens != 80 {
		t.Errorf("%+v", total)
	}
}

func TestMonthOf(t *testing.T) {
	t.Parallel()
	shanghai := time.FixedZone("CST", 8*3600)
	if m := store.MonthOf(time.Date(2026, 4, 1, 7, 59, 59, 0, shanghai)); m != 202603 {
		t.Errorf("%d", m)
	}
	if m := store.MonthOf(time.Date(2026, 4, 1, 8, 0, 0, 0, shanghai)); m != 202604 {
		t.Errorf("%d", m)
	}
}

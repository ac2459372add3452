package limit

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/heteroflow/heteroflow/internal/store"
)

// Kind is what a limit counts.
type Kind int

// The kinds. Tokens are those of prompt and answer together, money is in billionths of the unit that prices are in.
const (
	Requests    Kind = iota // in any minute
	Tokens                  // in any minute
	Concurrency             // at the same time
	MonthTokens             // in a month, UTC
	MonthMoney              // in a month, UTC
	kinds
)

// String is the kind's name in metrics.
func (k Kind) String() string {
	return [kinds]string{"requests", "tokens", "concurrency", "month_tokens", "month_money"}[k]
}

// budget reports whether what is used does not come back until the month ends.
func (k Kind) budget() bool { return k == MonthTokens || k == MonthMoney }

// amounts are a number of each kind.
type amounts [kinds]int64

// caps are the most of each kind; below 0 is no limit.
type caps amounts

func capsOf(c store.Caps) caps {
	var out caps
	for k, n := range [kinds]*int64{c.RequestsPerMinute, c.TokensPerMinute, c.Concurrency, c.TokensPerMonth, c.NanosPerMonth} {
		out[k] = -1
		if n != nil {
			out[k] = *n
		}
	}
	return out
}

const (
	// window is how long a second's use counts: the minute, and the second itself.
	window = 61
	// holdFor is how long what an instance took in advance stays its own without a word from it.
	holdFor = 10 * time.Second
	// margin is how much earlier the instance itself stops using it, for clocks that disagree.
	margin = time.Second
	// lostFor is how long an instance that was not heard of may come back and say what it used indeed.
	lostFor = time.Hour
)

// slot is what was used in one second.
type slot struct {
	At       int64 `json:"t"` // Unix seconds
	Requests int64 `json:"r,omitempty"`
	Tokens   int64 `json:"k,omitempty"`
}

// hold is what an instance took in advance and has not used, and its requests that run.
type hold struct {
	Until int64   `json:"u"` // Unix milliseconds
	Seq   int64   `json:"q"` // of the instance's last report that is counted
	Of    amounts `json:"a"`
	// Lost: the instance was not heard of in time, and all of it counts as used until it is.
	Lost bool `json:"l,omitempty"`
}

// state is what the instances know together of one limit, beside what was spent in the month.
type state struct {
	Slots []slot          `json:"s,omitempty"` // oldest first, one for a second
	Holds map[string]hold `json:"h,omitempty"` // by instance
	// Thirst is when somebody last got less than was wanted, Unix milliseconds.
	Thirst amounts `json:"d"`
}

// decode reads a state; one that cannot be read is the empty one, which an hour at most puts right.
func decode(text string) state {
	var s state
	if text == "" || json.Unmarshal([]byte(text), &s) != nil || !slices.IsSortedFunc(s.Slots, func(a, b slot) int { return int(a.At - b.At) }) {
		return state{}
	}
	return s
}

func (s state) encode() string {
	raw, err := json.Marshal(s)
	if err != nil {
		panic("limit: encode a state: " + err.Error()) // numbers and texts
	}
	return string(raw)
}

// add counts use in a second. What comes of corrections never goes below nothing.
func (s *state) add(more slot) {
	i, found := slices.BinarySearchFunc(s.Slots, more.At, func(have slot, at int64) int { return int(have.At - at) })
	if !found {
		s.Slots = slices.Insert(s.Slots, i, slot{At: more.At})
	}
	s.Slots[i].Requests = max(0, s.Slots[i].Requests+more.Requests)
	s.Slots[i].Tokens = max(0, s.Slots[i].Tokens+more.Tokens)
}

// lose counts all of a hold as used, or with a sign of -1 no longer does.
func (s *state) lose(a *store.Allowance, h hold, sign int64) {
	s.add(slot{At: h.Until / 1000, Requests: sign * h.Of[Requests], Tokens: sign * h.Of[Tokens]})
	if store.MonthOf(time.UnixMilli(h.Until)) == a.Month {
		a.Tokens = max(0, a.Tokens+sign*h.Of[MonthTokens])
		a.Nanos = max(0, a.Nanos+sign*h.Of[MonthMoney])
	}
}

// report is what an instance tells of one limit, and asks for.
type report struct {
	caps     caps
	instance string
	seq      int64 // of what follows; told twice it is counted once
	slots    []slot
	month    int64 // of what was spent
	spent    amounts
	now      time.Time
	running  int64
	keep     amounts // taken in advance and still relied on: it is never taken away
	want     amounts // wanted now, besides
	ahead    amounts // wanted in advance, all in all
}

// answer is what the instance has then.
type answer struct {
	held  amounts // in advance
	slots []slot  // of all instances
	spent store.Spent
	// thirst is when somebody last got less than was wanted, Unix milliseconds.
	thirst amounts
}

// apply counts a report and shares out what is left. After it, what was used in the last minute and what is held by
// all instances is together no more than the limit, but for what requests used beyond their reservations and for a
// limit that was lowered.
func apply(a *store.Allowance, r report) answer {
	s := decode(a.State)
	if s.Holds == nil {
		s.Holds = map[string]hold{}
	}
	nowMS, second := r.now.UnixMilli(), r.now.Unix()
	if month := store.MonthOf(r.now); a.Month < month {
		a.Spent = store.Spent{Month: month}
	}
	others, peers := amounts{}, int64(0)
	for name, h := range s.Holds {
		switch {
		case name == r.instance:
			if h.Lost { // it was cut off, and tells now what it used
				s.lose(a, h, -1)
			}
		case h.Until > nowMS:
			peers++
			for k := range h.Of {
				others[k] += h.Of[k]
			}
		case !h.Lost: // it died, or was cut off: it may have used all of it, at the last moment
			s.lose(a, h, 1)
			h.Lost = true
			s.Holds[name] = h
		case h.Until+lostFor.Milliseconds() < nowMS:
			delete(s.Holds, name)
		}
	}
	if mine := s.Holds[r.instance]; mine.Seq < r.seq {
		for _, used := range r.slots {
			s.add(used)
		}
		if r.month == a.Month {
			a.Tokens = max(0, a.Tokens+r.spent[MonthTokens])
			a.Nanos = max(0, a.Nanos+r.spent[MonthMoney])
		}
	}
	s.Slots = slices.DeleteFunc(s.Slots, func(u slot) bool { return u.At+window <= second || u.Requests == 0 && u.Tokens == 0 })
	used := amounts{MonthTokens: a.Tokens, MonthMoney: a.Nanos, Concurrency: r.running}
	for _, u := range s.Slots {
		used[Requests] += u.Requests
		used[Tokens] += u.Tokens
	}
	out := answer{slots: s.Slots, spent: a.Spent}
	for k := range kinds {
		if r.caps[k] < 0 {
			continue
		}
		room := max(0, r.caps[k]-used[k]-others[k]-r.keep[k])
		now := min(room, r.want[k])
		// In advance, no more than a part of what is left: near the limit nobody sits on what another could use.
		ahead := min(max(0, r.ahead[k]-r.keep[k]), (room-now)/(2*(peers+1)))
		out.held[k] = r.keep[k] + now + ahead
		if now < r.want[k] {
			s.Thirst[k] = nowMS
		}
	}
	out.thirst = s.Thirst
	h := hold{Until: r.now.Add(holdFor).UnixMilli(), Seq: r.seq, Of: out.held}
	h.Of[Concurrency] += r.running
	s.Holds[r.instance] = h
	a.State = s.encode()
	return out
}

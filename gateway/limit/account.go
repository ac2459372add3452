package limit

import (
	"math"
	"sync"
	"time"

	"github.com/heteroflow/heteroflow/internal/store"
)

// ring is the use of the last minute by seconds.
type ring [64]slot

func (r *ring) slots() []slot {
	if r == nil {
		return nil
	}
	return r[:]
}

func (r *ring) add(second, requests, tokens int64) {
	s := &r[second&63]
	if s.At != second {
		if s.At > second {
			return // older than a minute
		}
		*s = slot{At: second}
	}
	s.Requests += requests
	s.Tokens += tokens
}

// account is what this instance knows and holds of one limit. It is safe for concurrent use.
type account struct {
	id, model string

	mu    sync.Mutex
	limit *store.Limit // never changed
	caps  caps

	spare    amounts   // taken in advance; below 0 when requests used more than was reserved
	until    time.Time // spare is void from then on
	month    int64     // that spare and spent belong to
	monthEnd time.Time
	running  int64

	pending *ring   // used, not in a report yet; nil before the first use
	spent   amounts // of the month, the same
	changed bool    // there is something in pending or spent
	sent    *report // made, not known to be counted yet
	seq     int64

	known    []slot // used by all instances, when last told
	last     minute
	total    store.Spent
	want     amounts // wanted by requests that wait
	gross    amounts // taken since the last report
	rate     [kinds]float64
	dry      [kinds]time.Time // until then, asking again is no use
	asked    time.Time        // last report
	answered bool             // ever
	thirst   [kinds]time.Time // until then others want what is held in advance
	promised amounts          // granted to requests that waited, for a moment
	promise  time.Time        // the moment's end
	mean     float64          // tokens of an answer; 0 before the first

	wake   func(*account) // puts it on the list of those that have something to tell
	listed bool           // it is there
	gone   bool           // the limit was deleted
}

// tell has the account's use told. The lock is held.
func (a *account) tell() {
	if !a.listed && !a.gone {
		a.listed = true
		a.wake(a)
	}
}

// verdict is what an account says to a request.
type verdict int

const (
	granted verdict = iota
	ask             // there may be more in the store
	refused         // there is no more now
	never           // it is more than the limit
)

// turn brings the account to the moment.
func (a *account) turn(now time.Time) {
	if !now.Before(a.until) {
		a.spare = amounts{}
	}
	if !now.Before(a.monthEnd) {
		year, month, _ := now.UTC().Date()
		a.month, a.monthEnd = store.MonthOf(now), time.Date(year, month+1, 1, 0, 0, 0, 0, time.UTC)
		a.spare[MonthTokens], a.spare[MonthMoney] = 0, 0
		a.spent = amounts{}
	}
}

// take takes what a request needs, all or nothing. One that has not waited leaves what was granted to those who have. alone
// is 0, or the number of instances when the store cannot be asked: then each lets through its share.
func (a *account) take(now time.Time, need amounts, waited bool, alone int64) (verdict, Kind) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.turn(now)
	worst, of := granted, Requests
	for k := range kinds {
		if a.caps[k] < 0 || need[k] <= a.free(now, k, waited) || need[k] == 0 {
			continue
		}
		v := ask
		switch {
		case need[k] > a.caps[k]:
			v = never
		case alone > 0 && a.share(now, k, need[k], alone):
			continue
		case alone > 0, now.Before(a.dry[k]):
			v = refused
		}
		if v > worst {
			worst, of = v, k
		}
	}
	if worst == granted {
		for k := range kinds {
			if a.caps[k] >= 0 { // a share is taken beside what is held
				a.spare[k] = max(a.spare[k]-need[k], min(a.spare[k], 0))
			}
			if waited {
				a.promised[k] = max(0, a.promised[k]-need[k])
			}
		}
		a.count(now.Unix(), need, 1)
	}
	return worst, of
}

// free is how much of what is held a request may take.
func (a *account) free(now time.Time, k Kind, waited bool) int64 {
	if waited || !now.Before(a.promise) {
		return a.spare[k]
	}
	return a.spare[k] - a.promised[k]
}

// count counts what a request takes, or with a sign of -1 gives back.
func (a *account) count(second int64, need amounts, sign int64) {
	for k := range kinds {
		a.gross[k] += sign * need[k]
	}
	a.running += sign * need[Concurrency]
	a.use(second, sign*need[Requests], sign*need[Tokens])
	a.spent[MonthTokens] += sign * need[MonthTokens]
	a.spent[MonthMoney] += sign * need[MonthMoney]
}

func (a *account) use(second, requests, tokens int64) {
	if a.pending == nil {
		a.pending = &ring{}
	}
	a.pending.add(second, requests, tokens)
	a.last.add(slot{second, requests, tokens})
	a.changed = true
	a.tell()
}

// share reports whether the request is within this instance's part of the limit.
func (a *account) share(now time.Time, k Kind, need, instances int64) bool {
	left, used := a.caps[k], int64(0)
	switch k {
	case Requests, Tokens:
		used = a.untold(now.Unix())[k]
		left = max(0, left-(a.minute(now.Unix()).used[k]-used)) // what all had used when last told
	case Concurrency:
		used = a.running
	default:
		used = a.spent[k]
		if a.sent != nil && a.sent.month == a.month {
			used += a.sent.spent[k]
		}
		left = max(0, left-a.spentOf(k))
	}
	return used+need <= (left+instances-1)/instances
}

// untold is what this instance used in the last minute and nobody else knows of.
func (a *account) untold(second int64) [2]int64 {
	m := minute{second: second}
	a.eachUntold(m.add)
	return m.used
}

// spentOf is what all instances spent of a budget, when last told.
func (a *account) spentOf(k Kind) int64 {
	switch {
	case a.total.Month != a.month:
		return 0
	case k == MonthTokens:
		return a.total.Tokens
	}
	return a.total.Nanos
}

// settle puts what was used in the place of what was reserved, and ends the request. Requests stay counted.
func (a *account) settle(now time.Time, r *Reservation, used amounts) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.turn(now)
	a.running--
	a.changed = true
	a.tell()
	valid := now.Before(a.until)
	if valid && a.caps[Concurrency] >= 0 {
		a.spare[Concurrency]++
	}
	if more, age := used[Tokens]-r.need[Tokens], now.Unix()-r.second; age < window-1 {
		a.use(r.second, 0, more)
		// What comes back from a second that is about to be forgotten is no right to use as much again.
		if a.caps[Tokens] >= 0 && valid && (more > 0 || age < window-int64(holdFor/time.Second)-1) {
			a.spare[Tokens] -= more
		}
	} else if more > 0 {
		a.use(now.Unix(), 0, more)
		if a.caps[Tokens] >= 0 && valid {
			a.spare[Tokens] -= more
		}
	}
	for _, k := range []Kind{MonthTokens, MonthMoney} {
		if more := used[k] - r.need[k]; r.month == a.month {
			a.spent[k] += more
			if a.caps[k] >= 0 && valid {
				a.spare[k] -= more
			}
		}
	}
	if n := float64(r.answer(used)); n > 0 {
		if a.mean == 0 {
			a.mean = n
		}
		a.mean += (n - a.mean) / 8
	}
}

// undo gives all of a reservation back, which was of no use since another limit said no. It is kept for a request that asks
// again.
func (a *account) undo(now time.Time, r *Reservation, again bool, alone int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for k := range kinds {
		if a.caps[k] < 0 || alone > 0 {
			continue
		}
		a.spare[k] += r.need[k]
		if again {
			a.keepFor(now, k, r.need[k])
		}
	}
	a.count(r.second, r.need, -1)
}

// wish notes what a request waits for, and keeps for it what there is.
func (a *account) wish(now time.Time, need amounts, waited bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for k := range kinds {
		switch {
		case a.caps[k] < 0:
		case need[k] > a.free(now, k, waited):
			a.want[k] += need[k]
		default:
			a.keepFor(now, k, need[k])
		}
	}
	a.tell()
}

// keepFor keeps something for those who wait.
func (a *account) keepFor(now time.Time, k Kind, n int64) {
	if n <= 0 {
		return
	}
	if !now.Before(a.promise) {
		a.promised = amounts{}
	}
	a.promised[k] += n
	a.promise = now.Add(promiseFor)
}

const (
	// syncEvery is how often what changed is told.
	syncEvery = 200 * time.Millisecond
	// renewEvery is how often an instance says that its requests still run.
	renewEvery = 3 * time.Second
	// thirstFor is how long nothing is held in advance after somebody got less than was wanted.
	thirstFor = time.Second
	// promiseFor is how long what was granted to requests that wait is theirs.
	promiseFor = 50 * time.Millisecond
	// quiet is a rate below which nothing is taken in advance.
	quiet = 0.05
)

// due reports whether there is something to tell or to ask now.
func (a *account) due(now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	wait := renewEvery
	if a.busy() {
		wait = syncEvery
	}
	return a.want != amounts{} || !now.Before(a.asked.Add(wait))
}

// busy reports whether anything is to be told or given back soon.
func (a *account) busy() bool {
	if a.changed || a.sent != nil || a.want != (amounts{}) {
		return true
	}
	for k := range kinds {
		if a.spare[k] != 0 || a.rate[k] > 0 {
			return true
		}
	}
	return false
}

// report makes the next report. What was told in one that may be lost is told again.
func (a *account) report(now time.Time, instance string) report {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.turn(now)
	a.asked = now
	if a.sent == nil {
		a.seq++
		a.sent = &report{seq: a.seq, month: a.month, spent: a.spent}
		for _, s := range a.pending.slots() {
			if (s.Requests != 0 || s.Tokens != 0) && s.At+window > now.Unix() {
				a.sent.slots = append(a.sent.slots, s)
			}
		}
		if a.pending != nil {
			*a.pending = ring{}
		}
		a.spent, a.changed = amounts{}, false
	}
	r := *a.sent
	r.caps, r.instance, r.now, r.running, r.want = a.caps, instance, now, a.running, a.want
	for k := range kinds {
		r.ahead[k] = a.foresee(now, k)
		if a.caps[k] < 0 {
			continue
		}
		r.keep[k] = max(0, a.spare[k])
		if least := max(r.ahead[k], a.promised[k]); r.keep[k] > 2*r.ahead[k] && r.keep[k] > least {
			r.keep[k] = least
		}
		a.spare[k] = r.keep[k] // the rest is given back; a debt is told as use
	}
	if !now.Before(a.promise) {
		a.promised = amounts{}
	}
	a.gross, a.want = amounts{}, amounts{}
	return r
}

// foresee is what is wanted in advance: for three reports at the rate of the last ones, of requests at the same time
// half as many as run, and nothing while others go without.
func (a *account) foresee(now time.Time, k Kind) int64 {
	a.rate[k] = 0.7*a.rate[k] + 0.3*float64(max(0, a.gross[k])+a.want[k])
	if a.rate[k] < quiet {
		a.rate[k] = 0
	}
	ahead := int64(math.Ceil(3 * a.rate[k]))
	switch {
	case now.Before(a.thirst[k]):
		return 0
	case k == Concurrency:
		return min(ahead, (a.running+1)/2)
	}
	return ahead
}

// absorb takes the answer to a report. What was used meanwhile came from what the report kept.
func (a *account) absorb(now time.Time, r report, got answer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sent, a.answered = nil, true
	a.known, a.total, a.last.valid = got.slots, got.spent, false
	if r.caps != a.caps {
		a.until = time.Time{} // the limit was changed meanwhile: what it gave is void
		return
	}
	a.until = r.now.Add(holdFor - margin)
	for k := range kinds {
		more := got.held[k] - r.keep[k]
		if k.budget() && r.month != a.month {
			more = 0
		}
		a.spare[k] += more
		a.keepFor(now, k, min(more, r.want[k]))
		a.thirst[k] = time.UnixMilli(got.thirst[k]).Add(thirstFor)
		if more < r.want[k] {
			a.dry[k] = r.now.Add(syncEvery)
		}
	}
}

// idle takes the account off the list when there is nothing left to tell.
func (a *account) idle() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.listed = !a.gone && (a.busy() || a.running > 0)
	return !a.listed
}

// change sets another limit; what was taken in advance of the one before is void.
func (a *account) change(l store.Limit) {
	a.mu.Lock()
	defer a.mu.Unlock()
	c := capsOf(l.Caps)
	if c != a.caps {
		a.until, a.spare, a.dry = time.Time{}, amounts{}, [kinds]time.Time{}
	}
	a.limit, a.caps = &l, c
}

// standing is how an account stands for one kind, for headers and refusals.
type standing struct {
	limit *store.Limit
	kind  Kind
	cap   int64
	used  int64         // by all, as far as it is known
	wait  time.Duration // until so much is free as is needed
	full  time.Duration // until all of it is free again
	ends  time.Time     // of a budget's month
}

func (s standing) left() int64 { return max(0, s.cap-s.used) }

// stand tells how the account stands; ok is false when it has no limit of the kind.
func (a *account) stand(now time.Time, k Kind, need int64) (s standing, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.caps[k] < 0 {
		return standing{}, false
	}
	a.turn(now)
	s = standing{limit: a.limit, kind: k, cap: a.caps[k]}
	switch k {
	case Requests, Tokens:
		s = a.recent(now, k, need)
	case Concurrency:
		s.used, s.wait = a.running, time.Second
	default:
		s.used, s.wait, s.full = a.spentOf(k)+a.spent[k], a.monthEnd.Sub(now), a.monthEnd.Sub(now)
		s.ends = a.monthEnd
		if a.sent != nil && a.sent.month == a.month {
			s.used += a.sent.spent[k]
		}
	}
	return s, true
}

// minute is the sum of the last minute, as of a second.
type minute struct {
	valid  bool
	second int64
	used   [2]int64 // requests and tokens
	newest [2]int64 // second of the last use
}

func (m *minute) add(u slot) {
	if u.At+window <= m.second {
		return
	}
	for k, n := range [2]int64{u.Requests, u.Tokens} {
		m.used[k] += n
		if n > 0 {
			m.newest[k] = max(m.newest[k], u.At)
		}
	}
}

// minute gives the sum of the last minute: the store's, and what it was not told yet. It is added up once a second.
func (a *account) minute(second int64) *minute {
	if a.last.valid && a.last.second == second {
		return &a.last
	}
	a.last = minute{valid: true, second: second}
	a.each(a.last.add)
	return &a.last
}

// each visits what was used in the last minute.
func (a *account) each(visit func(slot)) {
	for _, u := range a.known {
		visit(u)
	}
	a.eachUntold(visit)
}

func (a *account) eachUntold(visit func(slot)) {
	if a.sent != nil {
		for _, u := range a.sent.slots {
			visit(u)
		}
	}
	if a.changed {
		for _, u := range a.pending.slots() {
			visit(u)
		}
	}
}

// rates tells how the account stands for requests and tokens a minute.
func (a *account) rates(now time.Time) (out [2]standing, ok [2]bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for k := range Concurrency {
		if ok[k] = a.caps[k] >= 0; ok[k] {
			out[k] = a.standing(now, k)
		}
	}
	return out, ok
}

func (a *account) standing(now time.Time, k Kind) standing {
	m := a.minute(now.Unix())
	s := standing{limit: a.limit, kind: k, cap: a.caps[k], used: max(0, m.used[k])}
	if s.used > 0 && m.newest[k] > 0 {
		s.full = time.Unix(m.newest[k]+window, 0).Sub(now)
	}
	return s
}

// recent tells also when enough of the last minute will be over.
func (a *account) recent(now time.Time, k Kind, need int64) standing {
	s, second := a.standing(now, k), now.Unix()
	var by [window]int64 // by age in seconds
	a.each(func(u slot) {
		if age := second - u.At; age >= 0 && age < window {
			by[age] += [...]int64{u.Requests, u.Tokens}[k]
		}
	})
	s.wait = time.Second
	over := s.used + need - s.cap
	for age := window - 1; age >= 0 && over > 0; age-- {
		over -= by[age]
		s.wait = time.Unix(second-int64(age)+window, 0).Sub(now)
	}
	return s
}

// ended reports whether the limit was deleted.
func (a *account) ended() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.gone
}

// release lets go of all that is held in advance.
func (a *account) release() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.spare, a.gross, a.rate, a.want = amounts{}, amounts{}, [kinds]float64{}, amounts{}
}

// usual is the mean of the answers, and the most that a request may ever use, below 0 without a limit.
func (a *account) usual() (mean, most int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	mean, most = meanAnswer, -1
	if a.mean > 0 {
		mean = int64(math.Ceil(a.mean))
	}
	for _, k := range []Kind{Tokens, MonthTokens} {
		if c := a.caps[k]; c >= 0 && (most < 0 || c < most) {
			most = c
		}
	}
	return mean, most
}

// unpriced refuses what has no price where money counts: not known is not nothing.
func (a *account) unpriced(of *Ask, price *store.Price) *Refusal {
	a.mu.Lock()
	defer a.mu.Unlock()
	if price != nil || of.Free || a.caps[MonthMoney] < 0 {
		return nil
	}
	return &Refusal{standing: standing{limit: a.limit, kind: MonthMoney}, model: of.Model, unpriced: true}
}

package submit

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/heteroflow/heteroflow/internal/store"
	"github.com/heteroflow/heteroflow/placement-service/engine"
	"github.com/heteroflow/heteroflow/placement-service/engine/backfill"
	"github.com/heteroflow/heteroflow/placement-service/watch"
)

const (
	// DefaultPatience is how long a job waits before room is kept for it whose end nobody knows.
	DefaultPatience = 10 * time.Minute
	// headPause is the least time between two plans for the job at the head.
	headPause = 5 * time.Second
	// headKept is how long a plan holds that the queue does not come back to. It comes once in queue.Tick at least.
	headKept = 3 * time.Minute
)

// turn is a job's place in the queue.
type turn struct {
	priority int
	queued   time.Time // zero is now
}

func (t turn) before(o turn) bool {
	if t.priority != o.priority {
		return t.priority > o.priority
	}
	return !t.queued.IsZero() && (o.queued.IsZero() || t.queued.Before(o.queued))
}

// headBook remembers for which waiting job room is kept. It is of this process only: every instance works the queue, and
// the first job that does not fit is the same for all. What two instances plan at the same moment may differ, and each
// keeps to its own.
type headBook struct {
	mu   sync.Mutex
	head *head // nil for none
}

// head is the job for which room is kept. It is not changed once it is in the book.
type head struct {
	key     watch.JobKey
	tenant  string
	spec    string // hash of what it asks
	turn    turn
	request engine.Request
	plan    backfill.Plan
	lasts   map[watch.JobKey]lasts // of the jobs that ran when it was planned
	planned time.Time
	seen    time.Time
}

// lasts is how long allocations of a job run.
type lasts struct {
	tenant  string
	runtime time.Duration // at most; 0 when nobody knows
	ends    bool          // by itself, sooner or later
}

// current is the job for which room is kept, nil for none.
func (b *headBook) current(now time.Time) *head {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.head != nil && now.Sub(b.head.seen) > headKept {
		b.head = nil
	}
	return b.head
}

func (b *headBook) put(h *head) {
	b.mu.Lock()
	b.head = h
	b.mu.Unlock()
}

// drop reports whether the job was at the head. It is not any more.
func (b *headBook) drop(key watch.JobKey) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	was := b.head != nil && b.head.key == key
	if was {
		b.head = nil
	}
	return was
}

// leaveHead lets the others have the room that is kept for a job.
func (s *Submitter) leaveHead(key watch.JobKey) {
	if s.heads.drop(key) {
		s.wake()
	}
}

// keepRoom keeps room for a job that was refused for want of it, when no other is before it, and says so in the refusal.
func (s *Submitter) keepRoom(ctx context.Context, sub submission, row store.Job, found placed, refusal engine.Refusal) (engine.Refusal, error) {
	now, at := s.Clock.Now(), turn{row.Priority, row.QueuedAt}
	was := s.heads.current(now)
	first := was == nil || was.key == sub.key || at.before(was.turn)
	if !first {
		return refusal, nil
	}
	switch {
	case !helps(refusal), refusal.Code == codeMakingRoom, len(found.decision.Switches) > 0, found.request.Loose != "", len(row.Injection) > 0:
		s.leaveHead(sub.key)
		return refusal, nil
	}
	h := was
	if h == nil || h.key != sub.key || h.spec != sub.hash || now.Sub(h.planned) >= headPause {
		var err error
		if h, err = s.planHead(ctx, sub, row, found.request, was); err != nil {
			return refusal, err
		}
	}
	if h == nil {
		s.leaveHead(sub.key)
		return refusal, nil
	}
	again := *h
	again.seen = now
	s.heads.put(&again)
	refusal.Sentence += "; " + s.keptSentence(&again)
	return refusal, nil
}

// planHead is the plan for a job, nil when no room can be kept for it, or not yet.
func (s *Submitter) planHead(ctx context.Context, sub submission, row store.Job, request engine.Request, was *head) (*head, error) {
	rows, err := s.submittedRows(ctx)
	if err != nil {
		return nil, err
	}
	now := s.Clock.Now()
	h := &head{
		key: sub.key, tenant: row.Tenant, spec: sub.hash, turn: turn{row.Priority, row.QueuedAt}, request: request,
		lasts: make(map[watch.JobKey]lasts, len(rows)), planned: now,
	}
	for key, r := range rows {
		facts := s.factsOf(r)
		h.lasts[key] = lasts{tenant: r.Tenant, runtime: facts.runtime, ends: facts.batch || facts.runtime > 0}
	}
	snapshot, err := s.snapshotFor(ctx, sub.key, row.Tenant, nil)
	if err != nil {
		return nil, err
	}
	q := backfill.Question{Engine: s.Engine(), Snapshot: snapshot, Head: request, Running: s.runningUntil(h.lasts, sub.key), Now: now.Unix()}
	plan, ok := backfill.Find(q)
	if !ok {
		return nil, nil
	}
	if plan.At == 0 {
		if due := row.QueuedAt.Add(s.patience()); now.Before(due) {
			if s.WakeAt != nil {
				s.WakeAt(due)
			}
			return nil, nil
		}
		if was != nil && was.key == sub.key && was.spec == sub.hash && was.plan.At == 0 && was.plan.Stands(q) {
			plan = was.plan // what was kept so far would be given up at another place
		}
	}
	h.plan = plan
	if was == nil || was.key != sub.key {
		s.log.Info("room is kept for a job that waits", "namespace", sub.key.Namespace, "job_id", sub.key.ID, "starts_by", plan.At)
	}
	return h, nil
}

func (s *Submitter) patience() time.Duration {
	if s.Patience == 0 {
		return DefaultPatience
	}
	return s.Patience
}

// runningUntil lists what runs, but for one job, with its end.
func (s *Submitter) runningUntil(known map[watch.JobKey]lasts, but watch.JobKey) []backfill.Allocation {
	now := s.Clock.Now()
	var out []backfill.Allocation
	for _, key := range s.World.JobsWithDevices() {
		if key == but {
			continue
		}
		last := known[key]
		for _, a := range s.World.LiveAllocs(key) {
			one := backfill.Allocation{Allocation: allocationOf(a, store.Job{Tenant: last.tenant}, victimFacts{pinned: !last.ends}, now)}
			if end := a.Started.Add(last.runtime); last.runtime > 0 && !a.Started.IsZero() && end.After(now) {
				one.EndsAt = end.Unix() + 1 // the second in which it ends is not over
			}
			if last.runtime > 0 && a.Started.IsZero() {
				one.EndsAt = now.Add(last.runtime).Unix() + 1
			}
			if !a.Stays() {
				one.Pinned, one.EndsAt = false, now.Unix()
			}
			out = append(out, one)
		}
	}
	return out
}

// besideHead is what becomes of a decision for a job behind the one for which room is kept: it is taken when it does not
// delay that one, else the job goes elsewhere, or waits.
func (s *Submitter) besideHead(ctx context.Context, p placing, r engine.Request, given []store.Claim, d engine.Decision) (engine.Decision, error) {
	now := s.Clock.Now()
	h := s.heads.current(now)
	own := len(given) > 0 && p.least == 0 // what a job holds already is its own to use again, and what an elastic gang grows by is not
	if h == nil || !d.Placed || r.Loose != "" || own || h.key == p.key || p.turn.before(h.turn) {
		return d, nil
	}
	snapshot, err := s.snapshotFor(ctx, p.key, p.tenant, given)
	if err != nil {
		return d, err
	}
	q := backfill.Question{Engine: s.Engine(), Snapshot: snapshot, Head: h.request, Running: s.runningUntil(h.lasts, p.key), Now: now.Unix()}
	ends := int64(0)
	if p.reading.Runtime > 0 {
		ends = now.Add(p.reading.Runtime).Unix() + 1
	}
	other := h.plan.Beside(q, r, d, ends, func(kept engine.Snapshot) (d engine.Decision) {
		d, err = s.decideAround(ctx, kept, r)
		return d
	})
	if err != nil {
		return d, err
	}
	if !other.Placed && other.Refusal.Code == backfill.CodeReserved {
		other.Refusal.Sentence = fmt.Sprintf("fits, but would delay %s, which waits in front of it since %s: %s", named(h.key, h.tenant, p.tenant),
			h.turn.queued.UTC().Format(time.DateTime+" MST"), s.keptSentence(h))
		if p.reading.Runtime == 0 {
			other.Refusal.Sentence += "; a job that says in its meta how long it runs at most, such as heteroflow_runtime = \"2h\", may run before"
		}
	}
	return other, nil
}

func (s *Submitter) keptSentence(h *head) string {
	return h.plan.Sentence(s.World.NodeName, func(at int64) string { return time.Unix(at, 0).UTC().Format("2006-01-02 15:04 MST") })
}

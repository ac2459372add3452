package submit

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/heteroflow/heteroflow/internal/nomadapi"
	"github.com/heteroflow/heteroflow/internal/store"
	"github.com/heteroflow/heteroflow/placement-service/admission"
	"github.com/heteroflow/heteroflow/placement-service/engine"
	"github.com/heteroflow/heteroflow/placement-service/engine/preempt"
	"github.com/heteroflow/heteroflow/placement-service/watch"
)

// elasticBook knows the elastic gangs that run, and which of them are to give members back. What it does not know, since
// another instance sent it or a process before this one did, it reads from the store now and then.
type elasticBook struct {
	mu      sync.Mutex
	gangs   map[watch.JobKey]bool
	shrinks map[watch.JobKey]shrink
	making  map[watch.JobKey]making
	read    time.Time
	plans   planBook
}

// making is that elastic gangs shrink for a job, as a sentence, and until when that is waited for.
type making struct {
	sentence string
	until    time.Time
}

// shrink is to how many members a gang is to shrink, and for whom.
type shrink struct {
	members int
	reason  string
}

const (
	// elasticRead is how often the store is asked for elastic gangs.
	elasticRead = time.Minute
	// shrinkPatience is how long a job waits for members that end, beyond their kill timeouts, before other ways are tried.
	shrinkPatience = 30 * time.Second
)

// note remembers a job that was sent, if it is one.
func (b *elasticBook) note(sub submission) {
	if g := sub.reading.Gang; g == nil || g.Min == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.gangs == nil {
		b.gangs = map[watch.JobKey]bool{}
	}
	b.gangs[sub.key] = true
}

func (b *elasticBook) drop(key watch.JobKey) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.gangs, key)
}

// elasticGangs are the elastic gangs that Nomad has.
func (s *Submitter) elasticGangs(ctx context.Context) ([]watch.JobKey, error) {
	b := &s.elastic
	b.mu.Lock()
	stale := s.Clock.Now().Sub(b.read) >= elasticRead
	b.mu.Unlock()
	if stale {
		rows, err := s.submittedRows(ctx)
		if err != nil {
			return nil, err
		}
		b.mu.Lock()
		b.read, b.gangs = s.Clock.Now(), map[watch.JobKey]bool{}
		for key, row := range rows {
			if bytes.Contains(row.Injection, []byte(`"most":`)) {
				b.gangs[key] = true
			}
		}
		b.mu.Unlock()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	out := make([]watch.JobKey, 0, len(b.gangs))
	for key := range b.gangs {
		out = append(out, key)
	}
	slices.SortFunc(out, func(a, c watch.JobKey) int {
		return cmp.Or(cmp.Compare(a.Namespace, c.Namespace), cmp.Compare(a.ID, c.ID))
	})
	return out, nil
}

// elasticGang is an elastic gang that runs.
type elasticGang struct {
	key    watch.JobKey
	row    store.Job
	sub    submission
	older  admission.Injection
	group  *admission.GroupInjection // its group, within older
	least  int
	lively []*watch.Alloc // its allocations that Nomad wants to run, the last ones that Nomad would stop first
}

// elasticNow reads an elastic gang; ok is false for a job that is none, or that Nomad does not have.
func (s *Submitter) elasticNow(ctx context.Context, key watch.JobKey) (g elasticGang, ok bool, err error) {
	g.key = key
	if g.row, err = s.find(ctx, key); err != nil {
		return g, false, err
	}
	if g.row.State != store.JobSubmitted {
		return g, false, nil
	}
	if g.sub, err = s.stored(g.row); err != nil {
		return g, false, nil // whoever else reads it says so
	}
	if g.older, err = runningInjection(g.row); err != nil {
		return g, false, nil
	}
	for i := range g.older.Groups {
		if one := &g.older.Groups[i]; one.Most > 0 {
			g.group = one
			g.least, ok = g.sub.reading.Elastic(one.Group)
		}
	}
	if !ok {
		return g, false, nil
	}
	for _, a := range s.World.LiveAllocs(key) {
		if a.Group == g.group.Group && a.Stays() {
			g.lively = append(g.lively, a)
		}
	}
	slices.SortFunc(g.lively, func(a, b *watch.Alloc) int { return cmp.Or(cmp.Compare(b.Index, a.Index), cmp.Compare(a.ID, b.ID)) })
	return g, true, nil
}

// Resize shrinks the elastic gangs that are to make room, and else gives those that have fewer members than they may as many
// more as there is room for: what waits was tried before, and what is kept for the job at the head stays kept.
func (s *Submitter) Resize(ctx context.Context) error {
	s.elastic.mu.Lock()
	shrinks := s.elastic.shrinks
	s.elastic.shrinks = nil
	s.elastic.mu.Unlock()
	var failed []error
	for key, to := range shrinks {
		if err := s.shrink(ctx, key, to); err != nil && !errors.Is(err, store.ErrConflict) { // it is found again
			failed = append(failed, err)
		}
	}
	if len(shrinks) > 0 {
		return errors.Join(failed...)
	}
	gangs, err := s.elasticGangs(ctx)
	if err != nil {
		return err
	}
	for _, key := range gangs {
		if err := s.grow(ctx, key); err != nil && !errors.Is(err, store.ErrConflict) {
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}

// grow gives an elastic gang as many more members as there is room for.
func (s *Submitter) grow(ctx context.Context, key watch.JobKey) error {
	defer s.lock(key)()
	g, ok, err := s.elasticNow(ctx, key)
	if err != nil {
		return err
	}
	if !ok {
		s.elastic.drop(key)
		return nil
	}
	if g.group.Count >= g.group.Most || len(g.lively) < g.group.Count {
		return nil // it has all, or some are still to come
	}
	p := g.sub.placing(g.row, g.older)
	p.least, p.turn = g.group.Count+1, turn{priority: g.row.Priority} // what it grows by it asks for now
	if fits, err := s.fits(ctx, p); err != nil || !fits {
		return err
	}
	stored, err := s.Nomad.Job(ctx, key.Namespace, key.ID)
	if nomadapi.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return answerOf(err)
	}
	if !s.isSame(stored, g.sub.hash) {
		return nil // another version, of which its own registration takes care
	}
	p.row = &g.row
	found, err := s.placeGroups(ctx, p, allGroups(g.sub.reading))
	if err != nil || found.job == nil {
		return err
	}
	s.log.Info("elastic gang grows", "namespace", key.Namespace, "job_id", key.ID, "from", g.group.Count, "to", len(found.injection.Gang))
	return s.sendResized(ctx, g, stored, found)
}

// fits reports whether there is room for what is asked, beside what the job holds. It is cheaper than to place it, which
// fails most of the time.
func (s *Submitter) fits(ctx context.Context, p placing) (bool, error) {
	snapshot, request, err := s.asked(ctx, p)
	return err == nil && s.Engine().Fits(snapshot, request), err
}

// asked is what a job asks for now, and the cluster as it sees it.
func (s *Submitter) asked(ctx context.Context, p placing) (engine.Snapshot, engine.Request, error) {
	open, err := s.Store.ReservationOf(ctx, p.key.Namespace, p.key.ID)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return engine.Snapshot{}, engine.Request{}, databaseError(err)
	}
	request, _, given := s.ask(p, allGroups(p.reading), open)
	snapshot, err := s.snapshotFor(ctx, p.key, p.tenant, given)
	return snapshot, request, err
}

// sendResized registers an elastic gang with another number of members, unless somebody registered it since.
func (s *Submitter) sendResized(ctx context.Context, g elasticGang, stored Tree, found placed) error {
	g.sub.env["EnforceIndex"] = true
	g.sub.env["JobModifyIndex"], _ = stored["JobModifyIndex"].(json.Number)
	result, err := s.send(ctx, g.sub, g.row, found)
	result.finish()
	return err
}

// shrink takes members from an elastic gang: Nomad stops those with the highest indexes. Their cards are theirs until they
// have ended.
func (s *Submitter) shrink(ctx context.Context, key watch.JobKey, to shrink) error {
	defer s.lock(key)()
	g, ok, err := s.elasticNow(ctx, key)
	members := max(to.members, g.least)
	if err != nil || !ok || members >= g.group.Count {
		return err
	}
	stored, err := s.Nomad.Job(ctx, key.Namespace, key.ID)
	if nomadapi.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return answerOf(err)
	}
	if !s.isSame(stored, g.sub.hash) {
		return nil
	}
	from := g.group.Count
	g.older.Gang = slices.Clone(g.older.Gang)
	for _, a := range g.lively[:min(len(g.lively), from-members)] {
		at := slices.Index(g.older.Gang, engine.Member{Group: a.Group, NodeID: a.NodeID})
		if at >= 0 {
			g.older.Gang = slices.Delete(g.older.Gang, at, at+1)
		}
	}
	g.older.Gang = g.older.Gang[:min(len(g.older.Gang), members)]
	g.group.Count = members
	job, stale := admission.Apply(g.sub.clean, g.sub.reading, g.older)
	if len(stale) > 0 {
		return nil // it is to be decided anew, whatever its number
	}
	s.log.Info("elastic gang shrinks", "namespace", key.Namespace, "job_id", key.ID, "from", from, "to", members)
	s.audit(ctx, store.Decision{Namespace: key.Namespace, JobID: key.ID, Outcome: "shrunk", ReasonCode: string(codeShrunk), Reason: fmt.Sprintf("from %d to %d members: %s", from, members, to.reason)})
	return s.sendResized(ctx, g, stored, placed{job: job, injection: g.older})
}

// codeShrunk is why members of an elastic gang were taken from it.
const codeShrunk engine.Code = "shrunk"

// surplus is a member that an elastic gang can do without.
type surplus struct {
	gang *elasticGang
	preempt.Allocation
}

// shrinkFor is what becomes of the refusal of a waiting job where elastic gangs have members beyond their fewest and no more
// right than it: they shrink by as few as let it start, before anything is evicted. shrinks tells that they do.
func (s *Submitter) shrinkFor(ctx context.Context, sub submission, row store.Job, found placed) (refusal engine.Refusal, shrinks bool, err error) {
	refusal = refusalOf(found)
	if !helps(refusal) || found.request.Loose != "" {
		return refusal, false, nil
	}
	if sentence, is := s.elastic.shrinksFor(sub.key, s.Clock.Now()); is {
		refusal.Code, refusal.Sentence = codeMakingRoom, sentence
		return refusal, true, nil
	}
	keys, err := s.elasticGangs(ctx)
	if err != nil || len(keys) == 0 {
		return refusal, false, err
	}
	if open, err := s.openEviction(ctx, sub.key); err != nil || open != nil {
		return refusal, false, err // its room is being made already
	}
	planned, may := s.mayPlan(&s.elastic.plans, sub.key)
	if !may {
		return refusal, false, nil
	}
	give, err := s.planShrink(ctx, sub, row, keys)
	planned()
	if err != nil || len(give) == 0 {
		return refusal, false, err
	}
	refusal.Code, refusal.Sentence = codeMakingRoom, s.stateShrink(sub, row, give)
	return refusal, true, nil
}

// shrinksFor reports whether elastic gangs are shrinking for a job, and says so.
func (b *elasticBook) shrinksFor(key watch.JobKey, now time.Time) (sentence string, is bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for other, m := range b.making {
		if !now.Before(m.until) {
			delete(b.making, other)
		}
	}
	m, is := b.making[key]
	return m.sentence, is
}

// planShrink are the members that elastic gangs give for a job that waits; none when that does not help, or is not needed
// since enough are ending already.
func (s *Submitter) planShrink(ctx context.Context, sub submission, row store.Job, keys []watch.JobKey) ([]surplus, error) {
	var all []surplus
	var leaving []preempt.Allocation
	now := s.Clock.Now()
	for _, key := range keys {
		g, ok, err := s.elasticNow(ctx, key)
		if err != nil {
			return nil, err
		}
		if !ok || key == sub.key || g.row.Priority > row.Priority {
			continue
		}
		for _, a := range s.liveDevices(key) {
			if !a.Stays() {
				leaving = append(leaving, allocationOf(a, g.row, victimFacts{}, now))
			}
		}
		for _, a := range g.lively[:max(0, len(g.lively)-g.least)] {
			all = append(all, surplus{&g, allocationOf(a, g.row, victimFacts{}, now)})
		}
	}
	if len(all) == 0 {
		return nil, nil
	}
	slices.SortStableFunc(all, func(a, b surplus) int { // those with the least right give first
		return cmp.Or(cmp.Compare(a.gang.row.Priority, b.gang.row.Priority), b.gang.row.QueuedAt.Compare(a.gang.row.QueuedAt), cmp.Compare(jobName(a.gang.key), jobName(b.gang.key)))
	})
	older, err := runningInjection(row)
	if err != nil {
		return nil, err
	}
	snapshot, request, err := s.asked(ctx, sub.placing(row, older))
	if err != nil {
		return nil, err
	}
	snapshot = preempt.Without(snapshot, leaving)
	give, _ := fewest(all, func(gone []surplus) bool {
		out := make([]preempt.Allocation, len(gone))
		for i, one := range gone {
			out[i] = one.Allocation
		}
		return s.Engine().Fits(preempt.Without(snapshot, out), request)
	})
	return give, nil
}

// stateShrink has elastic gangs shrink once the queue is through, and says so for the job that waits.
func (s *Submitter) stateShrink(sub submission, row store.Job, give []surplus) string {
	taken := map[*elasticGang]int{}
	var gangs []*elasticGang
	for _, one := range give {
		if taken[one.gang]++; taken[one.gang] == 1 {
			gangs = append(gangs, one.gang)
		}
	}
	b, longest := &s.elastic, time.Duration(0)
	var says []string
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.shrinks == nil {
		b.shrinks, b.making = map[watch.JobKey]shrink{}, map[watch.JobKey]making{}
	}
	for _, g := range gangs {
		to := len(g.lively) - taken[g]
		if before, twice := b.shrinks[g.key]; twice {
			to = min(to, before.members)
		}
		b.shrinks[g.key] = shrink{members: to, reason: "room for " + named(sub.key, row.Tenant, g.row.Tenant)}
		says = append(says, fmt.Sprintf("%s shrinks from %d to %d members", named(g.key, g.row.Tenant, row.Tenant), len(g.lively), to))
		longest = max(longest, s.factsOf(g.row).kill)
	}
	sentence := "room is being made: " + strings.Join(says, "; ")
	b.making[sub.key] = making{sentence: sentence, until: s.Clock.Now().Add(longest + shrinkPatience)}
	if s.WakeAt != nil {
		s.WakeAt(b.making[sub.key].until)
	}
	return sentence
}

// fewest are as few of a list as have to go for something to fit, from its front on: of each gang those that Nomad stops
// first. ok is false when not even all of them going helps.
func fewest(all []surplus, fits func(gone []surplus) bool) (gone []surplus, ok bool) {
	if !fits(all) {
		return nil, false
	}
	n := sort.Search(len(all), func(n int) bool { return fits(all[:n]) })
	gone = slices.Clone(all[:n])
	for at := 0; at < len(gone); { // a gang at the front may have given for nothing
		g := gone[at].gang
		end := at
		for end < len(gone) && gone[end].gang == g {
			end++
		}
		keep := sort.Search(end-at, func(keep int) bool {
			return fits(slices.Concat(gone[:at], gone[at:at+keep], gone[end:]))
		})
		gone = slices.Delete(gone, at+keep, end)
		at += keep
	}
	return gone, true
}

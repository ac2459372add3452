package submit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/heteroflow/heteroflow/internal/store"
	"github.com/heteroflow/heteroflow/placement-service/admission"
	"github.com/heteroflow/heteroflow/placement-service/engine"
	"github.com/heteroflow/heteroflow/placement-service/ledger"
	"github.com/heteroflow/heteroflow/placement-service/watch"
)

// placing is one attempt to find room for a job.
type placing struct {
	key     watch.JobKey
	tenant  string
	job     Tree // stripped
	reading admission.Reading
	turn    turn
	prev    store.Job
	older   admission.Injection // of the running decision; no groups when there is none
	// least is how many members an elastic gang is to have at least, beyond what its job says; 0 for no more than that.
	least int
	// row is the job's row, which is taken for what was decided together with the room, so that of two who try the
	// same job one stops. Nil only decides.
	row *store.Job
}

// placed is what came of it.
type placed struct {
	job         Tree // with the injection; nil when there is no room
	injection   admission.Injection
	decision    *engine.Decision // nil when the running decision was repeated
	request     engine.Request
	reservation string // id; empty when nothing had to be reserved
}

// onItsWay is the row of a job that is sent to Nomad with what was decided.
func onItsWay(row store.Job, found placed) (store.Job, error) {
	err := setInjection(&row, found)
	row.State, row.ReasonCode, row.Reason = store.JobSubmitting, "", ""
	return row, err
}

// take takes the job's row and the room for what was decided: both, or neither.
func (s *Submitter) take(ctx context.Context, p placing, found *placed, open store.Reservation, claims []store.Claim) error {
	row, err := onItsWay(*p.row, *found)
	if err != nil {
		return err
	}
	if len(claims) == 0 {
		row, err = s.Store.PutJob(ctx, row)
	} else {
		found.reservation = store.NewID()
		alone := s.alone(p.tenant, open.Claims, claims)
		err = s.Ledger.Change(p.tenant, open.Claims, claims, func() (err error) {
			row, err = s.Store.PutJobReserving(ctx, row, store.Reservation{
				ID: found.reservation, Replaces: open.ID, Tenant: p.tenant, Namespace: p.key.Namespace, JobID: p.key.ID,
				Claims: claims, ExpiresAt: s.Clock.Now().Add(reservationLife), Alone: alone,
			})
			return err
		})
	}
	if err != nil {
		return err
	}
	*p.row = row
	s.World.Pin(p.key, found.decision.Groups, s.Clock.Now())
	if len(claims) > 0 {
		s.log.Debug("room reserved", "job_id", p.key.ID, "reservation", found.reservation, "replaces", open.ID, "claims", len(claims), "first", claims[0].Group)
	}
	return nil
}

// alone are the pools of new claims on which no stranger may be, by the rules that the decision was made by: the ledger
// sees to it once more, since another instance may decide at the same time. Where the job is already nothing is asked
// anew.
func (s *Submitter) alone(tenant string, open, claims []store.Claim) []store.Alone {
	if !s.Engine().KeepsTenantsApart() {
		return nil
	}
	seen := map[watch.PoolKey]bool{}
	for _, c := range open {
		seen[watch.PoolKey{NodeID: c.NodeID, Group: c.Group}] = true
	}
	var out []store.Alone
	for _, c := range claims {
		at := watch.PoolKey{NodeID: c.NodeID, Group: c.Group}
		if seen[at] {
			continue
		}
		seen[at] = true
		if beside, is := s.World.Alone(c.NodeID, c.Group, tenant); is {
			out = append(out, store.Alone{NodeID: c.NodeID, Group: c.Group, Beside: beside})
		}
	}
	return out
}

// observe tells of what a job asks for that was not sent before and is not refused.
func (s *Submitter) observe(sub submission, found placed) {
	known := sub.prev.Version != 0 && sub.prev.State != store.JobStopped && sub.prev.SpecHash == sub.hash
	refused := found.job == nil && refusalOf(found).Never
	if s.Observe != nil && !known && !refused {
		s.Observe(sub.reading.Request)
	}
}

// repeated reports whether nothing had to be decided.
func (p placed) repeated() bool { return p.job != nil && p.decision == nil }

// placeTries is how often a decision is repeated when others took its room meanwhile.
const placeTries = 8

// place decides, takes the row and reserves. store.ErrConflict says that the row was changed. What does not fit comes
// back without a job and with the decision that says why.
func (s *Submitter) place(ctx context.Context, p placing) (placed, error) {
	stale := allGroups(p.reading)
	p.older = admission.Shrink(p.reading, p.older) // room that is not asked for any more goes to whoever asks next
	if len(p.older.Groups) > 0 {
		var out Tree
		if out, stale = admission.Apply(p.job, p.reading, p.older); len(stale) == 0 {
			return placed{job: out, injection: p.older}, nil
		}
	}
	stale = p.reading.Together(stale)
	if out, is := s.unsure(); is {
		return out, nil
	}
	return s.placeGroups(ctx, p, stale)
}

// placeGroups is place for some groups, whether or not they have a running decision.
func (s *Submitter) placeGroups(ctx context.Context, p placing, groups []string) (placed, error) {
	if p.row != nil { // who only asks takes nothing, and waits for nobody
		s.deciding.Lock()
		defer s.deciding.Unlock()
	}
	for try := range placeTries {
		result, err := s.placeOnce(ctx, p, groups)
		var full *store.NoRoomError
		switch {
		case errors.Is(err, store.ErrJobChanged):
			return placed{}, store.ErrConflict
		case errors.As(err, &full), errors.Is(err, store.ErrConflict):
			s.metrics.conflicts.Inc()
			s.log.Debug("decision lost a race", "job_id", p.key.ID, "try", try+1, "error", err)
			s.Ledger.Invalidate()
			continue
		case err != nil:
			return placed{}, databaseError(err)
		}
		return result, nil
	}
	return placed{decision: &engine.Decision{Refusal: &engine.Refusal{
		Code: codeContended, Sentence: "other jobs kept taking the room that was found: the job is tried again at once",
	}}}, nil
}

// Reason codes of the service itself, beside the engine's.
const (
	codeNotReady    engine.Code = "cluster_unknown"
	codeContended   engine.Code = "contended"
	codeUnreachable engine.Code = "nomad_unreachable"
	codeStopping    engine.Code = "stopping"
	codePurging     engine.Code = "purging" // stopping, and to be forgotten then
)

func allGroups(r admission.Reading) []string {
	names := make([]string, 0, len(r.Request.Groups))
	for _, g := range r.Request.Groups {
		names = append(names, g.Name)
	}
	return names
}

func (s *Submitter) placeOnce(ctx context.Context, p placing, stale []string) (placed, error) {
	var open store.Reservation
	if p.prev.Version != 0 {
		var err error
		if open, err = s.Store.ReservationOf(ctx, p.key.Namespace, p.key.ID); err != nil && !errors.Is(err, store.ErrNotFound) {
			return placed{}, err
		}
	}
	request, kept, given := s.ask(p, stale, open)
	decision, err := s.decide(ctx, p.key, request, given, p.row == nil)
	if err == nil {
		decision, err = s.besideHead(ctx, p, request, given, decision)
	}
	if err != nil {
		return placed{}, err
	}
	if !decision.Placed {
		return placed{decision: &decision, request: request}, nil
	}
	reading := p.reading
	reading.Request = request
	_, newer, err := admission.Inject(p.job, reading, decision, admission.Options{Tenant: p.tenant, Key: s.Key})
	if err != nil {
		return placed{}, fmt.Errorf("write the decision into job %s: %w", p.key.ID, err)
	}
	injection := admission.Merge(p.reading, p.older, newer)
	job, missing := admission.Apply(p.job, p.reading, injection)
	if len(missing) > 0 {
		return placed{}, fmt.Errorf("write the decision into job %s: no plan for groups %v", p.key.ID, missing)
	}
	result := placed{job: job, injection: injection, decision: &decision, request: request}
	if p.row == nil {
		return result, nil
	}
	if why := s.overloaded(ctx, decision); why != "" {
		return placed{}, fmt.Errorf("%s: %w", why, store.ErrConflict) // decided again, on what is known now
	}
	err = s.take(ctx, p, &result, open, append(kept, s.confirmed(p.key, claimsOf(decision), given)...))
	return result, err
}

// overloaded looks at the newest load of the places of a decision once more, and says what is over its limit; empty when
// nothing is, or when load does not matter.
func (s *Submitter) overloaded(ctx context.Context, d engine.Decision) string {
	e := s.Engine()
	if s.Newest == nil || !e.LimitsLoad() {
		return ""
	}
	claims := claimsOf(d)
	var nodes []string
	for _, c := range claims {
		nodes = append(nodes, c.NodeID)
	}
	slices.Sort(nodes)
	s.Newest(ctx, slices.Compact(nodes))
	for _, c := range claims {
		if why := s.World.Overloaded(e, c.NodeID, c.Group); why != "" {
			return why
		}
	}
	return ""
}

// ask is the request for the stale groups, the claims that the job keeps whatever is decided, and those that it
// gives back first. Allocations that run under the same ask are named, so that they stay where they are.
func (s *Submitter) ask(p placing, stale []string, open store.Reservation) (r engine.Request, kept, given []store.Claim) {
	r = p.reading.Request
	r.Tenant = p.tenant
	if r.Gang != nil && p.least > 0 {
		more := *r.Gang
		more.Min, r.Gang = p.least, &more
	}
	r.Groups = nil
	for _, g := range p.reading.Request.Groups {
		if !slices.Contains(stale, g.Name) {
			continue
		}
		if old := groupOf(p.older, g.Name); old != nil && old.AskHash == p.reading.Hashes[g.Name] {
			plan := old.Plan
			plan.Placements = s.running(p.key, g.Name)
			g.Keep = &plan
		}
		r.Groups = append(r.Groups, g)
	}
	for _, c := range open.Claims {
		if slices.Contains(stale, c.TaskGroup) || !slices.Contains(allGroups(p.reading), c.TaskGroup) {
			given = append(given, c)
		} else {
			kept = append(kept, c)
		}
	}
	return r, kept, given
}

func groupOf(in admission.Injection, name string) *admission.GroupInjection {
	for i := range in.Groups {
		if in.Groups[i].Group == name {
			return &in.Groups[i]
		}
	}
	return nil
}

// running lists where the live allocations of a group hold devices.
func (s *Submitter) running(key watch.JobKey, group string) []engine.Placement {
	var out []engine.Placement
	for _, a := range s.World.LiveAllocs(key) {
		if a.Group != group || len(a.Devices) == 0 || !a.Stays() {
			continue
		}
		place := engine.Placement{NodeID: a.NodeID}
		for _, d := range a.Devices {
			claim := engine.Claim{Group: d.Group, Units: len(d.IDs)}
			if n := len(place.Tasks); n > 0 && place.Tasks[n-1].Task == d.Task {
				place.Tasks[n-1].Claims = append(place.Tasks[n-1].Claims, claim)
				continue
			}
			place.Tasks = append(place.Tasks, engine.TaskPlacement{Task: d.Task, Claims: []engine.Claim{claim}})
		}
		out = append(out, place)
	}
	return out
}

// confirmed marks the claims that allocations hold already. Those that were told to stop do not count: the room is for what
// comes after them, and must not go with them when they end before it is there.
func (s *Submitter) confirmed(key watch.JobKey, claims, open []store.Claim) []store.Claim {
	type what struct {
		node, pool, group, task string
		units                   int
	}
	staying := map[string]bool{}
	for _, a := range s.World.LiveAllocs(key) {
		staying[a.ID] = a.Stays()
	}
	held := map[what][]string{}
	for _, c := range open {
		if staying[c.AllocID] {
			k := what{c.NodeID, c.Group, c.TaskGroup, c.Task, c.Units}
			held[k] = append(held[k], c.AllocID)
		}
	}
	for i, c := range claims {
		k := what{c.NodeID, c.Group, c.TaskGroup, c.Task, c.Units}
		if ids := held[k]; len(ids) > 0 && c.AllocID == "" {
			claims[i].AllocID, held[k] = ids[0], ids[1:]
		}
	}
	return claims
}

// decide asks the engine on the current snapshot, and if wanted for what would start a refused request. A refusal is
// only believed when the ledger was read for it.
func (s *Submitter) decide(ctx context.Context, key watch.JobKey, r engine.Request, given []store.Claim, suggest bool) (engine.Decision, error) {
	for {
		taken, cached, err := s.Ledger.Taken(ctx)
		if err != nil {
			return engine.Decision{}, err
		}
		began := s.Clock.Now()
		snapshot := func() engine.Snapshot { return s.World.Snapshot(taken) }
		d, ok := s.decidePlain(taken, given, r)
		if !ok {
			own := s.World.Snapshot(ledger.Without(taken, r.Tenant, given))
			if len(given) > 0 {
				s.freeOwn(&own, key)
			}
			s.switches.hold(&own, key)
			if d, err = s.decideAround(ctx, own, r); err != nil {
				return d, err
			}
			snapshot = func() engine.Snapshot { return own }
		}
		s.metrics.decision.Observe(s.Clock.Now().Sub(began).Seconds())
		for _, f := range d.Faults {
			s.metrics.faults.WithLabelValues(f.Plugin).Inc()
			s.log.Error("a placement plugin failed", "plugin", f.Plugin, "job_id", key.ID, "panic", f.Text)
		}
		if d.Placed || !cached {
			if suggest && !d.Placed && len(d.Switches) == 0 {
				d.Suggestions = s.Engine().Suggest(snapshot(), r)
			}
			return d, nil
		}
		s.Ledger.Invalidate()
	}
}

// decidePlain decides on the cluster as the world follows it, which spares a copy of it. ok is false where the job sees
// another one than all others do, where cards would have to be switched, and where decisions are kept with their cluster.
func (s *Submitter) decidePlain(taken watch.Taken, given []store.Claim, r engine.Request) (d engine.Decision, ok bool) {
	if len(given) > 0 || s.Record != nil || s.switches.holds() {
		return d, false
	}
	d = s.World.Decide(s.Engine(), taken, r)
	return d, len(d.Switches) == 0
}

// freeOwn gives back the processor, memory and disk of the job's allocations: they are placed with the rest.
func (s *Submitter) freeOwn(snapshot *engine.Snapshot, key watch.JobKey) {
	cpu, memory, disk := map[string]int{}, map[string]int{}, map[string]int{}
	own := map[string]bool{} // cards
	for _, a := range s.World.LiveAllocs(key) {
		for _, d := range a.Devices {
			for _, id := range d.IDs {
				own[id] = true
			}
		}
		cpu[a.NodeID] += a.CPUMHz
		memory[a.NodeID] += a.MemoryMiB
		disk[a.NodeID] += a.DiskMiB
	}
	for i := range snapshot.Nodes {
		n := &snapshot.Nodes[i]
		n.UsedCPUMHz = max(0, n.UsedCPUMHz-cpu[n.ID])
		n.UsedMemoryMiB = max(0, n.UsedMemoryMiB-memory[n.ID])
		n.UsedDiskMiB = max(0, n.UsedDiskMiB-disk[n.ID])
		freeCards(n, own)
	}
}

// freeCards gives back whole cards, in copies: the snapshot shares them with others.
func freeCards(n *engine.Node, own map[string]bool) {
	if len(own) == 0 {
		return
	}
	for i := range n.Pools {
		p := &n.Pools[i]
		if !slices.ContainsFunc(p.Cards, func(c engine.Card) bool { return own[c.UUID] && c.UsedUnits > 0 }) {
			continue
		}
		p.Cards = slices.Clone(p.Cards)
		for k := range p.Cards {
			if own[p.Cards[k].UUID] {
				p.Cards[k].UsedUnits = 0
			}
		}
	}
}

func claimsOf(d engine.Decision) []store.Claim {
	var out []store.Claim
	for _, g := range d.Groups {
		for _, place := range g.Placements {
			for _, t := range place.Tasks {
				for _, c := range t.Claims {
					out = append(out, store.Claim{NodeID: place.NodeID, Group: c.Group, Units: c.Units, TaskGroup: g.Name, Task: t.Task})
				}
			}
		}
	}
	return out
}

// runningInjection reads the injection of the decision that the job runs under; none when it does not run.
func runningInjection(job store.Job) (admission.Injection, error) {
	var in admission.Injection
	if len(job.Injection) == 0 || job.State == store.JobStopped {
		return in, nil
	}
	if err := json.Unmarshal(job.Injection, &in); err != nil {
		return in, fmt.Errorf("read injection of job %s: %w", job.ID, err)
	}
	return in, nil
}

// note keeps a decision for explain.
func (s *Submitter) note(ctx context.Context, key watch.JobKey, outcome string, p placed) {
	d := store.Decision{Namespace: key.Namespace, JobID: key.ID, Outcome: outcome}
	if p.decision.Refusal != nil {
		d.ReasonCode, d.Reason = string(p.decision.Refusal.Code), p.decision.Refusal.Sentence
	} else {
		d.Reason = p.decision.Rounded()
	}
	input, err1 := json.Marshal(p.request)
	output, err2 := json.Marshal(p.decision)
	d.Input, d.Output = input, output
	if err := errors.Join(err1, err2, s.Store.AddDecision(ctx, d)); err != nil {
		s.log.Warn("decision not recorded", "job_id", key.ID, "error", err)
	}
	s.metrics.decisions.WithLabelValues(outcome).Inc()
}

func cloneTree(t Tree) Tree { return maps.Clone(t) }

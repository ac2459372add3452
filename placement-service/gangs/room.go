package gangs

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/grant"
	"github.com/heteroflow/heteroflow/internal/store"
	"github.com/heteroflow/heteroflow/placement-service/admission"
	"github.com/heteroflow/heteroflow/placement-service/engine"
	"github.com/heteroflow/heteroflow/placement-service/engine/collective"
	"github.com/heteroflow/heteroflow/placement-service/watch"
)

// Store is where it is kept who came, so that the members may come to any instance of the service.
type Store interface {
	ArriveGangMember(context.Context, store.GangMember) (store.GangMember, error)
	GangMembers(ctx context.Context, namespace, jobID string) ([]store.GangMember, error)
	StartGang(context.Context, []store.GangMember) (won bool, err error)
	StartedGangs(ctx context.Context) ([]store.StartedGang, error)
	RecallGang(ctx context.Context, namespace, jobID string) ([]store.GangMember, error)
	ForgetGang(ctx context.Context, namespace, jobID string, allocIDs ...string) error
	Job(ctx context.Context, namespace, id string) (store.Job, error)
	AddDecision(ctx context.Context, d store.Decision) error
}

// Cluster is what is known of allocations and nodes.
type Cluster interface {
	Fate(allocID string) watch.Fate
	Crew(job watch.JobKey) map[string]int // allocations that Nomad wants to run, by group
	Stale(now time.Time) string           // empty while it is kept up to date
	Ready() <-chan struct{}
	NodeAddress(nodeID string) string
	NearestNIC(nodeID, cardUUID string) string
}

// Nomad restarts and stops.
type Nomad interface {
	RestartAlloc(ctx context.Context, namespace, id string) error
	Deregister(ctx context.Context, namespace, id string, purge bool) (string, error)
}

// Config is what a room needs.
type Config struct {
	Store   Store
	Cluster Cluster
	Nomad   Nomad
	// Coming reports whether Nomad may still make allocations of a job.
	Coming func(ctx context.Context, job watch.JobKey) (bool, error)
	Key    ed25519.PublicKey // of the grants
	Clock  clock.Clock
	Log    hclog.Logger
}

// Room is safe for concurrent use.
type Room struct {
	Config
	log hclog.Logger

	mu       sync.Mutex
	meetings map[watch.JobKey]*meeting
	missing  map[watch.JobKey]time.Time // gangs that are short of members nobody says will come: since when
	due      map[watch.JobKey]time.Time // when to look at gangs of which a member has ended
	kick     chan struct{}
}

// meeting is one gang here. Its members are looked at together, not once for each.
type meeting struct {
	guests int // calls that are in; under the room's lock

	mu      sync.Mutex
	changed chan struct{}
	rows    map[string]store.GangMember // by allocation; nil when they have to be read
	looked  time.Time                   // when they were read
	size    int                         // members that an elastic gang is to have now
	sized   time.Time                   // when that was read
	// The settings of a start that were worked out.
	attempt  int
	settings map[string]collective.Setting // by allocation
}

// New makes a room.
func New(c Config) *Room {
	if c.Clock == nil {
		c.Clock = clock.System()
	}
	return &Room{
		Config: c, log: c.Log.Named("gangs"), meetings: map[watch.JobKey]*meeting{}, missing: map[watch.JobKey]time.Time{},
		due: map[watch.JobKey]time.Time{}, kick: make(chan struct{}, 1),
	}
}

// Arrival is a member that is ready to start.
type Arrival struct {
	Grant   string // of its task: who it is follows from it alone
	AllocID string
	Visit   string // tells this start of the task from the next
	Said    Said
}

// States of a meeting as a member sees it.
const (
	Waiting = "waiting"
	Started = "started"
	GivenUp = "given_up" // the others did not come in time
	Stopped = "stopped"  // Nomad does not want the allocation to run any more, or the job ends
)

// Answer is what a member is told.
type Answer struct {
	State   string
	Members int // of the gang
	Present int // that wait
	Attempt int // counts starts from 1; 0 unless Started
	Rank    int // of the member, from 0
	Setting collective.Setting
	Reason  string // for people, unless Started
}

// Refused says that the caller is no member.
type Refused struct{ Text string }

func (e *Refused) Error() string { return e.Text }

const (
	// looks is how often it is looked what other instances did.
	looks = time.Second
	// signs is how often a member that waits is noted to be there.
	signs = lifeSign / 3
)

// Meet notes a member and waits for the others, for so long. A member that still waits then is to ask again soon.
func (r *Room) Meet(ctx context.Context, a Arrival, patience time.Duration) (Answer, error) {
	g, err := grant.Parse(a.Grant, r.Key)
	if err == nil && g.Gang == nil {
		err = errors.New("its task is no member of a gang")
	}
	if err == nil {
		err = g.Gang.Check()
	}
	if err != nil {
		return Answer{}, &Refused{Text: fmt.Sprintf("the grant does not open this: %v", err)}
	}
	a.Said.Group, a.Said.Gang = g.Group, *g.Gang
	v := visitor{Arrival: a, job: watch.JobKey{Namespace: g.Namespace, ID: g.Job}, gang: *g.Gang}
	m := r.enter(v.job)
	defer r.leave(v.job, m)
	end, sign := r.Clock.After(patience), r.Clock.Now()
	for first := true; ; first = false {
		changed := m.change()
		now := r.Clock.Now()
		seen := !first && now.Before(sign)
		if !seen {
			sign = now.Add(signs)
		}
		answer, err := r.look(ctx, m, v, first, !seen)
		if err != nil || answer.State != Waiting {
			return answer, err
		}
		select {
		case <-ctx.Done():
			return Answer{}, ctx.Err()
		case <-end:
			return answer, nil
		case <-changed:
		case <-r.Clock.After(looks):
		}
	}
}

// visitor is a member that is in.
type visitor struct {
	Arrival
	job  watch.JobKey
	gang grant.Gang
}

func (r *Room) enter(job watch.JobKey) *meeting {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.meetings[job]
	if m == nil {
		m = &meeting{changed: make(chan struct{})}
		r.meetings[job] = m
	}
	m.guests++
	return m
}

func (r *Room) leave(job watch.JobKey, m *meeting) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if m.guests--; m.guests == 0 {
		delete(r.meetings, job)
	}
}

func (m *meeting) change() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.changed
}

// tell wakes all who wait. It is called with the meeting's lock held.
func (m *meeting) tell() {
	close(m.changed)
	m.changed = make(chan struct{})
}

// look does what is to be done next, and notes the member where it is time to.
func (r *Room) look(ctx context.Context, m *meeting, v visitor, first, note bool) (Answer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if fate := r.Cluster.Fate(v.AllocID); fate == watch.FateDone || fate == watch.FateLost {
		return Answer{State: Stopped, Members: v.gang.Members, Reason: "Nomad does not want the allocation to run any more"}, nil
	}
	now := r.Clock.Now()
	if m.rows == nil || now.Sub(m.looked) >= looks {
		if err := r.read(ctx, m, v.job, now); err != nil {
			return Answer{}, err
		}
	}
	own, there := m.rows[v.AllocID]
	if !first && (!there || own.Visit != v.Visit) { // somebody gave up for all, or the task began anew
		return Answer{State: GivenUp, Members: v.gang.Members, Reason: fmt.Sprintf("not all %d members of the gang came within %s", v.gang.Members, v.gang.StartTimeout())}, nil
	}
	if note {
		body, err := json.Marshal(v.Said)
		if err != nil {
			return Answer{}, fmt.Errorf("encode member of gang %s: %w", v.job.ID, err)
		}
		own, err = r.Store.ArriveGangMember(ctx, store.GangMember{Namespace: v.job.Namespace, JobID: v.job.ID, AllocID: v.AllocID, Visit: v.Visit, Body: body})
		if err != nil {
			return Answer{}, err
		}
		m.rows[v.AllocID] = own
	}
	if own.Attempt > 0 {
		return r.started(m, v, own)
	}
	s, err := r.scene(ctx, m, v.job, v.gang)
	if err != nil {
		return Answer{}, err
	}
	return r.do(ctx, m, v, s, next(s))
}

// read reads who came, and where the members were placed.
func (r *Room) read(ctx context.Context, m *meeting, job watch.JobKey, now time.Time) error {
	rows, err := r.Store.GangMembers(ctx, job.Namespace, job.ID)
	if err != nil {
		return err
	}
	m.rows, m.looked = make(map[string]store.GangMember, len(rows)), now
	for _, row := range rows {
		m.rows[row.AllocID] = row
	}
	return nil
}

// scene is what is known of a gang now.
func (r *Room) scene(ctx context.Context, m *meeting, job watch.JobKey, gang grant.Gang) (scene, error) {
	all, err := r.all(m, job)
	s := scene{gang: gang, all: all, now: r.Clock.Now()}
	if err != nil {
		return s, err
	}
	if gang.Min > 0 && (m.size == 0 || m.sized.Before(m.looked)) {
		plan, err := r.readPlan(ctx, job)
		if err != nil {
			return s, err
		}
		m.size, m.sized = len(plan), m.looked
	}
	if gang.Min > 0 && m.size > 0 {
		s.gang.Members = m.size
	}
	crew, counted := r.Cluster.Crew(job), map[string]bool{}
	for _, c := range all {
		if !counted[c.said.Group] {
			counted[c.said.Group] = true
			s.crew += crew[c.said.Group]
		}
	}
	if s.gone, err = r.gone(ctx, job, &s); err != nil {
		return s, err
	}
	if there := s.crew + s.parts().done; s.gone && gang.Min > 0 && there >= gang.Min {
		s.gone, s.gang.Members = false, there // it goes on with those it has
	}
	return s, nil
}

// gone reports whether members of a gang that began are missing, for longer than Nomad takes to replace them, and nothing
// says that it is going to.
func (r *Room) gone(ctx context.Context, job watch.JobKey, s *scene) (bool, error) {
	p := s.parts()
	live := len(p.running) + len(p.waiting) + len(p.called)
	lacks := live > 0 && p.attempt > 0 && s.crew+p.done < s.gang.Members && r.Cluster.Stale(s.now) == ""
	if lacks {
		coming, err := r.Coming(ctx, job)
		if err != nil {
			return false, err
		}
		row, err := r.Store.Job(ctx, job.Namespace, job.ID)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return false, err
		}
		lacks = !coming && row.State == store.JobSubmitted // another state says that it is placed anew, or stopped
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	since, before := r.missing[job]
	switch {
	case !lacks:
		delete(r.missing, job)
	case !before:
		r.missing[job] = s.now
	default:
		return s.now.Sub(since) >= settles, nil
	}
	return false, nil
}

// do does a step for the member that found it due, or for none.
func (r *Room) do(ctx context.Context, m *meeting, v visitor, now scene, s step) (Answer, error) {
	job := v.job
	members := now.gang.Members
	answer := Answer{State: Waiting, Members: members, Present: s.present, Reason: fmt.Sprintf("%d of %d members of the gang came", s.present, members)}
	switch s.what {
	case start:
		return r.begin(ctx, m, v, now.all, s, answer)
	case recall:
		called, err := r.Store.RecallGang(ctx, job.Namespace, job.ID)
		if err != nil {
			return Answer{}, err
		}
		m.rows = nil
		r.log.Info("gang begins anew", "namespace", job.Namespace, "job_id", job.ID, "called", len(called), "for", v.AllocID)
		for _, c := range called {
			r.restart(ctx, job, c.AllocID)
		}
		answer.Reason = "a member was lost and the gang begins anew: " + answer.Reason
	case endJob:
		if _, err := r.Nomad.Deregister(ctx, job.Namespace, job.ID, false); err != nil {
			return Answer{}, fmt.Errorf("stop job %s, of which a member was lost: %w", job.ID, err)
		}
		r.log.Info("gang ends", "namespace", job.Namespace, "job_id", job.ID, "reason", s.why)
		err := r.Store.AddDecision(ctx, store.Decision{Namespace: job.Namespace, JobID: job.ID, Outcome: "ended", ReasonCode: "member_lost", Reason: s.why})
		if err != nil {
			r.log.Warn("end of a gang not recorded", "job_id", job.ID, "error", err)
		}
		answer.State, answer.Reason = Stopped, s.why
	case giveUp:
		var waiting []string
		for _, c := range now.all {
			if c.attempt == 0 {
				waiting = append(waiting, c.alloc)
			}
		}
		if err := r.Store.ForgetGang(ctx, job.Namespace, job.ID, waiting...); err != nil {
			return Answer{}, err
		}
		r.log.Info("gang given up", "namespace", job.Namespace, "job_id", job.ID, "came", s.present, "of", members)
		m.rows = nil
		m.tell()
		answer.State, answer.Reason = GivenUp, fmt.Sprintf("%d of %d members of the gang came within %s", s.present, members, v.gang.StartTimeout())
	}
	return answer, nil
}

// restart has a member that is called back come to the start, if it has not ended.
func (r *Room) restart(ctx context.Context, job watch.JobKey, alloc string) {
	if r.Cluster.Fate(alloc) != watch.FateRuns {
		return
	}
	if err := r.Nomad.RestartAlloc(ctx, job.Namespace, alloc); err != nil {
		r.log.Warn("member not restarted", "job_id", job.ID, "alloc_id", alloc, "error", err)
	}
}

// begin lets the members of a step begin.
func (r *Room) begin(ctx context.Context, m *meeting, v visitor, all []came, s step, answer Answer) (Answer, error) {
	plan, err := r.readPlan(ctx, v.job)
	if err != nil {
		return Answer{}, err
	}
	if s.whole {
		s.members = ranked(plan, s.members)
		if v.gang.Min > 0 {
			s.members = rooted(s.members)
		}
	}
	rows := make([]store.GangMember, len(s.members))
	for i, c := range s.members {
		rows[i] = store.GangMember{Namespace: v.job.Namespace, JobID: v.job.ID, AllocID: c.alloc, Visit: c.visit, Attempt: s.attempt, Rank: c.rank}
	}
	won, err := r.Store.StartGang(ctx, rows)
	if err != nil {
		return Answer{}, err
	}
	m.rows, m.settings = nil, nil
	if won {
		r.log.Info("gang starts", "namespace", v.job.Namespace, "job_id", v.job.ID, "members", len(rows), "attempt", s.attempt)
		if gone := replaced(all, s); len(gone) > 0 {
			if err := r.Store.ForgetGang(ctx, v.job.Namespace, v.job.ID, gone...); err != nil {
				return Answer{}, err
			}
		}
	}
	m.tell()
	if err := r.read(ctx, m, v.job, r.Clock.Now()); err != nil {
		return Answer{}, err
	}
	if own := m.rows[v.AllocID]; own.Attempt > 0 && own.Visit == v.Visit {
		return r.started(m, v, own)
	}
	return answer, nil
}

// replaced are the allocations in whose place others begin.
func replaced(all []came, s step) []string {
	var out []string
	for _, c := range all {
		if c.attempt == 0 || slices.ContainsFunc(s.members, func(n came) bool { return n.alloc == c.alloc }) {
			continue
		}
		if s.whole || slices.ContainsFunc(s.members, func(n came) bool { return n.rank == c.rank }) {
			out = append(out, c.alloc)
		}
	}
	return out
}

// all are the members that are known.
func (r *Room) all(m *meeting, job watch.JobKey) ([]came, error) {
	out := make([]came, 0, len(m.rows))
	for _, row := range m.rows {
		c := came{
			alloc: row.AllocID, visit: row.Visit, attempt: row.Attempt, rank: row.Rank, cameAt: row.CameAt, seenAt: row.SeenAt,
			fate: r.Cluster.Fate(row.AllocID),
		}
		if err := json.Unmarshal(row.Body, &c.said); err != nil {
			return nil, fmt.Errorf("read member %s of gang %s: %w", row.AllocID, job.ID, err)
		}
		out = append(out, c)
	}
	slices.SortFunc(out, func(a, b came) int { return strings.Compare(a.alloc, b.alloc) })
	return out, nil
}

// readPlan reads in which order the members were placed. A job that is not known has none.
func (r *Room) readPlan(ctx context.Context, job watch.JobKey) ([]engine.Member, error) {
	row, err := r.Store.Job(ctx, job.Namespace, job.ID)
	if errors.Is(err, store.ErrNotFound) || err == nil && len(row.Injection) == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var in admission.Injection
	if err := json.Unmarshal(row.Injection, &in); err != nil {
		return nil, fmt.Errorf("read where gang %s was placed: %w", job.ID, err)
	}
	return in.Gang, nil
}

// started is what a member is told that begins.
func (r *Room) started(m *meeting, v visitor, own store.GangMember) (Answer, error) {
	if m.attempt != own.Attempt || m.settings == nil {
		settings, err := r.settings(m, v, own.Attempt)
		if err != nil {
			return Answer{}, err
		}
		m.attempt, m.settings = own.Attempt, settings
	}
	setting, ok := m.settings[own.AllocID]
	if !ok { // it came back into a start that was worked out before
		m.rows, m.settings = nil, nil
		return Answer{State: Waiting, Members: v.gang.Members, Reason: "the gang is looked at again"}, nil
	}
	return Answer{State: Started, Members: len(m.settings), Present: len(m.settings), Attempt: own.Attempt, Rank: own.Rank, Setting: setting}, nil
}

// settings works out what each member of a start is told.
func (r *Room) settings(m *meeting, v visitor, attempt int) (map[string]collective.Setting, error) {
	all, err := r.all(m, v.job)
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(c came) bool { return c.attempt != attempt || v.gang.Min > 0 && c.fate == watch.FateLost })
	slices.SortStableFunc(all, func(a, b came) int { return a.rank - b.rank })
	out := collective.Gang{ID: v.job.Namespace + "/" + v.job.ID, Attempt: attempt, Framework: collective.Framework(v.gang.Framework)}
	if v.gang.Min > 0 && v.gang.OnLost == grant.RestartMember { // the members see by themselves who comes and goes
		out.Min, out.Most = min(v.gang.Min, len(all)), v.gang.Members
	}
	var known []string // placeholders and what they stand for
	whole := true
	for i, c := range all {
		member := collective.Member{Node: c.said.NodeID, Address: c.said.Address}
		if member.Address == "" {
			member.Address = r.Cluster.NodeAddress(c.said.NodeID)
		}
		for _, card := range c.said.Cards {
			member.Cards = append(member.Cards, collective.Card{Index: card.Index, NIC: r.Cluster.NearestNIC(c.said.NodeID, card.UUID)})
			known = append(known, collective.CardAddressOf(i, card.Index), card.Address)
			whole = whole && card.Address != ""
		}
		if i == 0 {
			out.Vendor, out.Port = c.said.Vendor, c.said.Port
		}
		out.Members = append(out.Members, member)
	}
	made, err := collective.Settings(out)
	if err != nil {
		return nil, err
	}
	fill := strings.NewReplacer(known...)
	filled := map[string]string{} // equal for all members, and long
	settings := make(map[string]collective.Setting, len(made))
	for i, one := range made {
		for path, text := range one.Files {
			if path == collective.RankTable && !whole {
				delete(one.Files, path) // a table with a card that nobody can reach is worse than none
				continue
			}
			if filled[text] == "" {
				filled[text] = fill.Replace(text)
			}
			one.Files[path] = filled[text]
		}
		settings[all[i].alloc] = one
	}
	return settings, nil
}

package store

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"time"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/store/sqlgen"
)

// spanOpen is when a span ends that goes on.
const spanOpen = 1 << 62

// CardSpan is how long one task of an allocation held a part of a card, or several cards of a group. The log of spans is
// only added to: what was used can be reckoned from it again.
type CardSpan struct {
	ID                string
	Tenant            string // of the job
	Namespace, JobID  string
	TaskGroup, Task   string
	AllocID           string
	NodeID, Group     string // the pool
	Units, UnitsACard int64  // of the pool; both above 0
	Began             time.Time
	Ended             time.Time // zero while it goes on
}

// Until is the card time of the span up to a moment, in microseconds of one whole card, rounded down; 0 before it began.
// What lies between two moments is the difference of the two, so that no part of a microsecond is lost or counted
// twice however the time is cut.
func (s CardSpan) Until(at time.Time) int64 {
	if !s.Ended.IsZero() && at.After(s.Ended) {
		at = s.Ended
	}
	held := micros(at) - micros(s.Began)
	if held <= 0 {
		return 0
	}
	hi, lo := bits.Mul64(uint64(held), uint64(s.Units))
	perCard := uint64(s.UnitsACard)
	if hi >= perCard {
		return 1<<63 - 1 // more than any clock can tell
	}
	n, _ := bits.Div64(hi, lo, perCard)
	return int64(min(n, 1<<63-1))
}

// turnSpans makes the open spans of a job what its allocations hold now. Time that is settled already does not change:
// what begins or ends before that, by a clock that is behind, does so then.
func turnSpans(ctx context.Context, q *sqlgen.Queries, now time.Time, tenant, namespace, jobID string, live []Claim) error {
	open, err := q.ListCardSpansOfJob(ctx, sqlgen.ListCardSpansOfJobParams{Namespace: namespace, JobID: jobID, EndedAt: spanOpen})
	if err != nil {
		return fmt.Errorf("list open spans: %w", err)
	}
	begun := slices.Clone(live)
	var ended []sqlgen.CardSpan
	for _, row := range open {
		i := slices.IndexFunc(begun, func(c Claim) bool {
			return c.AllocID == row.AllocID && c.NodeID == row.NodeID && c.Group == row.GroupName && c.TaskGroup == row.TaskGroup && c.Task == row.Task &&
				int64(c.Units) == row.Units && tenant == row.Tenant
		})
		if i < 0 {
			ended = append(ended, row)
			continue
		}
		begun = slices.Delete(begun, i, i+1)
	}
	if len(begun)+len(ended) == 0 {
		return nil
	}
	settled, err := q.GetCardClock(ctx)
	if err != nil {
		return fmt.Errorf("read how far card time is settled: %w", err)
	}
	at := max(micros(now), settled)
	for _, row := range ended {
		if err := q.EndCardSpan(ctx, sqlgen.EndCardSpanParams{ID: row.ID, EndedAt: max(at, row.BeganAt)}); err != nil {
			return fmt.Errorf("end span of allocation %s: %w", row.AllocID, err)
		}
	}
	for _, c := range begun {
		perCard, err := unitsACard(ctx, q, c)
		if err != nil {
			return err
		}
		err = q.InsertCardSpan(ctx, sqlgen.InsertCardSpanParams{
			ID: NewID(), Tenant: tenant, Namespace: namespace, JobID: jobID, TaskGroup: c.TaskGroup, Task: c.Task, AllocID: c.AllocID,
			NodeID: c.NodeID, GroupName: c.Group, Units: int64(c.Units), PerCard: perCard, BeganAt: at, EndedAt: spanOpen,
		})
		if err != nil {
			return fmt.Errorf("begin span of allocation %s: %w", c.AllocID, err)
		}
	}
	return nil
}

// unitsACard is how many units of the claim's pool make a card: one of whole cards and of an administrator's partitions,
// and all that the pool has where it is one card's. A card that is out of order offers nothing: what is held of it
// counts as all of it.
func unitsACard(ctx context.Context, q *sqlgen.Queries, c Claim) (int64, error) {
	if _, kind, _ := cutGroup(c.Group); kind == accel.Whole.DeviceType() {
		return 1, nil
	}
	pools, err := q.ListPoolsOfNode(ctx, c.NodeID)
	if err != nil {
		return 0, fmt.Errorf("read pools of node %s: %w", c.NodeID, err)
	}
	n := int64(c.Units)
	for _, p := range pools {
		if p.GroupName == c.Group {
			n = max(n, p.Capacity)
		}
	}
	return n, nil
}

// cutGroup cuts vendor/type/name.
func cutGroup(group string) (vendor, kind, name string) {
	vendor, rest, _ := strings.Cut(group, "/")
	kind, name, _ = strings.Cut(rest, "/")
	return vendor, kind, name
}

// CardSpans lists every span that has time in [from, to), in no particular order but always the same.
func (s *Store) CardSpans(ctx context.Context, from, to time.Time) ([]CardSpan, error) {
	rows, err := s.reader().ListCardSpans(ctx, sqlgen.ListCardSpansParams{FromAt: micros(from), ToAt: micros(to)})
	if err != nil {
		return nil, fmt.Errorf("list what held cards: %w", err)
	}
	return mapRows(rows, func(r sqlgen.CardSpan) (CardSpan, error) {
		span := CardSpan{
			ID: r.ID, Tenant: r.Tenant, Namespace: r.Namespace, JobID: r.JobID, TaskGroup: r.TaskGroup, Task: r.Task, AllocID: r.AllocID,
			NodeID: r.NodeID, Group: r.GroupName, Units: r.Units, UnitsACard: r.PerCard, Began: moment(r.BeganAt),
		}
		if r.EndedAt != spanOpen {
			span.Ended = moment(r.EndedAt)
		}
		return span, nil
	})
}

// User is on whose account card time goes. Without a model nobody's requests used it, and it is the job's own.
type User struct {
	Tenant, KeyID, EndpointID, Model string
}

// Work is a request that a backend answered.
type Work struct {
	Backend string // as the service registry names it
	User
	Prompt, Cached, Completion *int64 // tokens; nil is not known
	Began                      time.Time
	Duration                   time.Duration
}

// longestWork is how long before a moment a request may have begun to be found as one that ran then.
const longestWork = time.Hour

// workBatch is how many requests are read at once.
const workBatch = 5000

// Work gives every request that ran in [from, to), began at most an hour before that and whose row is written, in order
// of their beginning.
func (s *Store) Work(ctx context.Context, from, to time.Time, each func(Work)) error {
	p := sqlgen.ListWorkParams{AfterStarted: micros(from.Add(-longestWork)), FromAt: micros(from), ToAt: micros(to), MaxRows: workBatch}
	for {
		rows, err := s.reader().ListWork(ctx, p)
		if err != nil {
			return fmt.Errorf("list what cards worked on: %w", err)
		}
		for _, r := range rows {
			each(Work{
				Backend: r.Backend, User: User{Tenant: r.Tenant, KeyID: r.KeyID, EndpointID: r.EndpointID, Model: r.Model},
				Prompt: intOf(r.PromptTokens), Cached: intOf(r.CachedTokens), Completion: intOf(r.CompletionTokens),
				Began: moment(r.StartedAt), Duration: time.Duration(r.DurationUs) * time.Microsecond,
			})
		}
		if len(rows) < workBatch {
			return nil
		}
		last := rows[len(rows)-1]
		p.AfterStarted, p.AfterID = last.StartedAt, last.ID
	}
}

// CardUse is card time of one hour.
type CardUse struct {
	Hour time.Time
	User
	Namespace, JobID string
	Group            string // vendor/type/name of the cards
	Micros           int64  // of one whole card, in microseconds
}

func (u CardUse) id() string {
	sum := sha256.Sum256([]byte(strings.Join([]string{
		fmt.Sprint(micros(u.Hour)), u.Tenant, u.KeyID, u.EndpointID, u.Model, u.Namespace, u.JobID, u.Group,
	}, "\x00")))
	return hex.EncodeToString(sum[:])
}

// CardsSettledTo is up to when card time is settled; zero before the first time.
func (s *Store) CardsSettledTo(ctx context.Context) (time.Time, error) {
	at, err := s.reader().GetCardClock(ctx)
	if err != nil {
		return time.Time{}, fmt.Errorf("read how far card time is settled: %w", err)
	}
	return moment(at), nil
}

// SettleCards adds what was used from one moment to the next, if it is settled up to the first, and notes that it is up to
// the second: both or neither. won is false, and nothing changes, when another has settled it.
func (s *Store) SettleCards(ctx context.Context, from, to time.Time, uses []CardUse) (won bool, err error) {
	byID := make(map[string]CardUse, len(uses))
	ids := make([]string, 0, len(uses))
	for _, u := range uses {
		if u.Micros < 0 {
			return false, fmt.Errorf("settle card time: %d µs of job %s is %w", u.Micros, u.JobID, ErrInvalid)
		}
		id := u.id()
		if have, twice := byID[id]; twice {
			u.Micros += have.Micros
		} else {
			ids = append(ids, id)
		}
		byID[id] = u
	}
	slices.Sort(ids)
	errLost := errors.New("settled by another")
	err = s.inTx(ctx, func(q *sqlgen.Queries) error {
		n, err := q.MoveCardClock(ctx, sqlgen.MoveCardClockParams{FromAt: micros(from), ToAt: micros(to)})
		if err != nil {
			return err
		}
		if n == 0 {
			return errLost
		}
		for _, id := range ids {
			u := byID[id]
			if err := q.AddCardUse(ctx, sqlgen.AddCardUseParams{
				ID: id, Hour: micros(u.Hour), Tenant: u.Tenant, KeyID: u.KeyID, EndpointID: u.EndpointID, Model: u.Model,
				Namespace: u.Namespace, JobID: u.JobID, GroupName: u.Group, CardUs: u.Micros,
			}); err != nil {
				return err
			}
		}
		return nil
	})
	if errors.Is(err, errLost) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("settle card time: %w", err)
	}
	return true, nil
}

package share

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/heteroflow/heteroflow/internal/accel"
)

// Order says which backends of a brand are used for slices and in which order they are tried. A brand without a row uses all
// of them in the registry's order. Bronze needs no mention: it is there for those who ask for it.
type Order map[accel.Vendor][]string

// Check refuses names that the registry does not have, each with what can be written.
func (o Order) Check(r *Registry) error {
	var problems []error
	for _, v := range accel.Vendors() {
		var known []string
		for _, b := range r.Of(v) {
			if b.Vendor() == v && slices.Contains(b.Describe().Forms, accel.Shared) {
				known = append(known, b.Name())
			}
		}
		for _, name := range o[v] {
			switch {
			case slices.Contains(known, name):
			case len(known) == 0:
				problems = append(problems, fmt.Errorf("share.%s: %q is not known: this brand's slices are bronze only, leave the list out", v, name))
			default:
				problems = append(problems, fmt.Errorf("share.%s: %q is not known: write some of %s", v, name, strings.Join(known, ", ")))
			}
		}
	}
	return errors.Join(problems...)
}

// NoBackendError says that no backend can make a share on this node.
type NoBackendError struct {
	Ask     Ask
	Reasons []string // one for each backend that would have fitted
}

func (e *NoBackendError) Error() string {
	what := "a share"
	if e.Ask.QoS != "" {
		what = fmt.Sprintf("a %s share", e.Ask.QoS)
	}
	text := fmt.Sprintf("%s of %s card %s cannot be made on this node", what, e.Ask.Vendor, e.Ask.Card.UUID)
	if len(e.Reasons) == 0 {
		return text + ": nothing here makes one of this brand: ask for another qos, or for the whole card"
	}
	return text + ": " + strings.Join(e.Reasons, "; ")
}

// choose finds who makes the share: nil for a card that the task has to itself. A share of a simulated card is one by
// agreement, whatever was asked: there is nothing to divide.
func (m *Manager) choose(ctx context.Context, a Ask) (Backend, error) {
	switch {
	case a.whole():
		return nil, nil
	case accel.IsSimulated(a.Card.UUID):
		return m.agreed(a.Form), nil
	}
	refused := &NoBackendError{Ask: a}
	fit := m.candidates(a)
	on, err := m.dividing(a)
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(fit, func(x, y Backend) int { return boolRank(y.Name() == on) - boolRank(x.Name() == on) })
	for _, b := range fit {
		err := fits(b, a)
		if err == nil {
			err = m.probe(ctx, b)
		}
		if err == nil {
			return b, nil
		}
		refused.Reasons = append(refused.Reasons, b.Name()+": "+err.Error())
	}
	return nil, refused
}

// agreed is the backend of every brand whose shares are by agreement; nil when there is none for the form.
func (m *Manager) agreed(form accel.Form) Backend {
	for _, b := range m.registry.Of("") {
		if d := b.Describe(); d.QoS == accel.Bronze && slices.Contains(d.Forms, form) {
			return b
		}
	}
	return nil
}

// dividing is the backend that divides the card of an ask already for a task that lives; empty for none. A card is divided by
// one backend at a time: two would not know of each other.
func (m *Manager) dividing(a Ask) (string, error) {
	entries, err := m.ledger.all()
	var unreadable *UnreadableError
	if err != nil && !errors.As(err, &unreadable) {
		return "", err
	}
	for _, e := range sorted(entries) {
		if e.Ask.ID != a.ID && e.sameCard(a) && m.divides(e) && m.lives(e, m.alive) {
			return e.Backend, nil
		}
	}
	return "", nil
}

// divides reports whether an entry's backend does something to the card: shares by agreement do nothing.
func (m *Manager) divides(e Entry) bool {
	b, ok := m.backend(e)
	return ok && b.Describe().QoS != accel.Bronze
}

// sameCard reports whether an entry is of the card of an ask.
func (e Entry) sameCard(a Ask) bool {
	return e.Ask.Vendor == a.Vendor && e.Ask.Card.UUID == a.Card.UUID
}

func boolRank(b bool) int {
	if b {
		return 1
	}
	return 0
}

// fits asks a backend that is particular whether it makes this share.
func fits(b Backend, a Ask) error {
	if f, ok := b.(Fitter); ok {
		return f.Fits(a)
	}
	return nil
}

// whole reports whether the task has the card to itself.
func (a Ask) whole() bool {
	return a.Form == accel.Whole || a.Form == accel.Partition || a.Form == accel.Shared && a.MemoryMiB == 0
}

// exclusive reports whether the share leaves no room for another on its card.
func (a Ask) exclusive() bool { return a.whole() || a.MemoryMiB == 0 }

// candidates are the backends that may make the share, best first: of the quality asked, then of a better one; without one
// asked, the best there is.
func (m *Manager) candidates(a Ask) []Backend {
	var fit []Backend
	for _, b := range m.ordered(a.Vendor, a.Form) {
		if rank(b.Describe().QoS) >= rank(a.QoS) && (a.QoS != accel.Bronze || a.Form != accel.Shared || b.Describe().QoS == accel.Bronze) {
			fit = append(fit, b)
		}
	}
	slices.SortStableFunc(fit, func(x, y Backend) int {
		by := rank(x.Describe().QoS) - rank(y.Describe().QoS)
		if a.QoS == "" {
			return -by
		}
		return by
	})
	return fit
}

// ordered are the brand's backends for cards of this form, in the order in which they are tried.
func (m *Manager) ordered(v accel.Vendor, form accel.Form) []Backend {
	var all []Backend
	for _, b := range m.registry.Of(v) {
		if slices.Contains(b.Describe().Forms, form) {
			all = append(all, b)
		}
	}
	order, given := m.order[v]
	if !given || form != accel.Shared {
		return all
	}
	all = slices.DeleteFunc(all, func(b Backend) bool { return b.Vendor() == v && !slices.Contains(order, b.Name()) })
	at := func(b Backend) int {
		if i := slices.Index(order, b.Name()); i >= 0 {
			return i
		}
		return len(order)
	}
	slices.SortStableFunc(all, func(x, y Backend) int { return at(x) - at(y) })
	return all
}

// rank orders the qualities of service; none asked is below all.
func rank(q accel.QoS) int {
	return slices.Index([]accel.QoS{accel.Bronze, accel.Silver, accel.Gold}, q)
}

// probeAgain is how long a backend counts as usable after a probe has passed. One that did not pass is asked every time.
const probeAgain = time.Minute

// probeTimeout bounds one probe: a tool that hangs is as good as none.
const probeTimeout = 5 * time.Second

// probe asks whether a backend is usable.
func (m *Manager) probe(ctx context.Context, b Backend) error {
	now := m.clock.Now()
	m.mu.Lock()
	at, passed := m.passed[lockOf(b)]
	m.mu.Unlock()
	if passed && now.Sub(at) < probeAgain && !now.Before(at) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	if err := b.Probe(ctx); err != nil {
		m.forget(b)
		return err
	}
	m.mu.Lock()
	m.passed[lockOf(b)] = now
	m.mu.Unlock()
	return nil
}

// forget has a backend probed again.
func (m *Manager) forget(b Backend) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.passed, lockOf(b))
}

// Usable asks every backend whether it is usable: nil, or the sentence that says what is missing, in the registry's order.
// They are asked at the same time; one that does not answer before ctx ends counts as not usable.
func (m *Manager) Usable(ctx context.Context) []Usable {
	all := m.registry.All()
	answers := make(chan Usable, len(all))
	for _, b := range all {
		go func() { answers <- Usable{Backend: b, Missing: m.probeSafely(ctx, b)} }()
	}
	out := make([]Usable, len(all))
	for i, b := range all {
		out[i] = Usable{Backend: b, Missing: errors.New("it does not answer")}
	}
	for range all {
		select {
		case u := <-answers:
			at := slices.IndexFunc(all, func(b Backend) bool { return lockOf(b) == lockOf(u.Backend) })
			out[at] = u
		case <-ctx.Done():
			return out
		}
	}
	return out
}

// Usable is one backend and what keeps it from being used; nil for nothing.
type Usable struct {
	Backend Backend
	Missing error
}

// probeSafely turns a panic of a probe into an answer.
func (m *Manager) probeSafely(ctx context.Context, b Backend) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the probe panics: %v", p)
		}
	}()
	return m.probe(ctx, b)
}

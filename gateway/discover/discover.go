// Package discover finds the services that serve models and their live instances: in Consul, or in Nomad's own
// service registry where there is no Consul. Choosing an instance for a request does not belong here.
package discover

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/internal/clock"
)

// What the tags of a service say begins with these.
const (
	ModelTag  = "heteroflow.model="  // the name of a model that clients may ask for; there may be several
	ServedTag = "heteroflow.served=" // the name by which the engine knows it, where that is another
	PathTag   = "heteroflow.path="   // a path of the engine's own that clients may use; there may be several
	EngineTag = "heteroflow.engine=" // the kind of engine, as internal/inference names it
	SlotsTag  = "heteroflow.slots="  // how many requests one instance takes at once

	HeadersTag    = "heteroflow.headers_timeout="
	WholeTag      = "heteroflow.whole_timeout="
	FirstTokenTag = "heteroflow.first_token_timeout="
	IdleTag       = "heteroflow.idle_timeout="
	TriesTag      = "heteroflow.tries="

	// Ports beside the one that takes requests, of each instance: where an engine tells whether it is ready, and its load.
	ReadyPortTag   = "heteroflow.ready_port="
	MetricsPortTag = "heteroflow.metrics_port=" // that of readiness when left out
)

// Offer is what a service offers by its tags.
type Offer struct {
	Models []string // sorted
	Paths  []string // sorted
	Served string   // empty when the engine knows the models by their names
	Engine string   // empty when it is not said
	Slots  int      // of one instance; 0 when it is not said
	Times  Times
	Wrong  []string // sorted; what is wrong with the tags, in words
}

// Times are limits that a service has of its own; 0 is the gateway's.
type Times struct {
	Headers, Whole, FirstToken, Idle time.Duration
	Tries                            int
}

func (o Offer) equal(other Offer) bool {
	return slices.Equal(o.Models, other.Models) && slices.Equal(o.Paths, other.Paths) && slices.Equal(o.Wrong, other.Wrong) &&
		o.Served == other.Served && o.Engine == other.Engine && o.Slots == other.Slots && o.Times == other.Times
}

// Instance is one live copy of a service.
type Instance struct {
	ID   string // the registry's id
	Addr string // host:port
	// Ready and Metrics are where it tells of itself, host:port; empty is Addr.
	Ready, Metrics string
}

// newInstance is an instance as its registry lists it.
func newInstance(id, host string, port int, tags []string) Instance {
	i := Instance{ID: id, Addr: net.JoinHostPort(host, strconv.Itoa(port))}
	at := func(name string) (addr string) {
		for _, tag := range tags {
			if value, ok := strings.CutPrefix(tag, name); ok {
				if n, err := strconv.ParseUint(value, 10, 16); err == nil && n > 0 {
					addr = net.JoinHostPort(host, value)
				}
			}
		}
		return addr
	}
	i.Ready = at(ReadyPortTag)
	i.Metrics = cmp.Or(at(MetricsPortTag), i.Ready)
	return i
}

// Service is a name in a registry with its live instances, ordered by id.
type Service struct {
	Name string
	Offer
	Instances []Instance
}

// Registry is where services are registered. Both calls block until something changed since index, or for as
// long as the registry holds a query; index 0 answers at once.
type Registry interface {
	// Names lists the services with what they offer.
	Names(ctx context.Context, index uint64) (offers map[string]Offer, next uint64, err error)
	// Live lists the instances of one service that may take traffic.
	Live(ctx context.Context, name string, index uint64) (instances []Instance, next uint64, err error)
}

// Watcher follows a registry and keeps the last good answer while the registry does not respond.
type Watcher struct {
	registry Registry
	log      hclog.Logger
	backoff  time.Duration

	mu       sync.Mutex
	services map[string]*watched
	wanted   map[string]bool // by name, besides those with a model tag
	changed  chan struct{}   // closed and replaced at each change
	lastErr  error
	listed   bool // the services are known
	synced   bool // and each of those there were then has been asked for
}

type watched struct {
	Service
	asked bool // the registry has answered, be it with an error
	stop  context.CancelFunc
	done  chan struct{}
}

// NewWatcher makes a watcher; Run starts it.
func NewWatcher(r Registry, log hclog.Logger) *Watcher {
	return &Watcher{
		registry: r, log: log, backoff: time.Second,
		services: map[string]*watched{}, wanted: map[string]bool{}, changed: make(chan struct{}),
	}
}

// Want names the services to follow although no tag of theirs names a model.
func (w *Watcher) Want(names []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	next := map[string]bool{}
	for _, n := range names {
		next[n] = true
	}
	if len(next) == len(w.wanted) && !slices.ContainsFunc(names, func(n string) bool { return !w.wanted[n] }) {
		return
	}
	w.wanted = next
	w.notify()
}

// Services is the present view, ordered by name. Changed is closed at the next change of it.
func (w *Watcher) Services() (list []Service, changed <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.services {
		list = append(list, s.Service)
	}
	slices.SortFunc(list, func(a, b Service) int { return strings.Compare(a.Name, b.Name) })
	return list, w.changed
}

// Err is nil when the registry answered last time, and nil only after the first answers: until the backends of all services are
// known, a model would be served by none that has some.
func (w *Watcher) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.lastErr == nil && !w.synced {
		return errNotYet
	}
	return w.lastErr
}

func (w *Watcher) notify() {
	close(w.changed)
	w.changed = make(chan struct{})
}

// Run follows the registry until the context ends, and returns after every watch it started has ended.
func (w *Watcher) Run(ctx context.Context) error {
	names := make(chan map[string]Offer)
	var following sync.WaitGroup
	defer following.Wait()
	following.Go(func() {
		w.follow(ctx, "services", func(ctx context.Context, index uint64) (uint64, error) {
			offers, next, err := w.registry.Names(ctx, index)
			if err == nil {
				select {
				case names <- offers:
				case <-ctx.Done():
				}
			}
			return next, err
		})
	})
	var offers map[string]Offer
	for {
		w.mu.Lock()
		changed := w.changed
		w.mu.Unlock()
		if offers != nil {
			w.reconcile(ctx, offers)
		}
		select {
		case offers = <-names:
		case <-changed:
		case <-ctx.Done():
			w.stopAll()
			return ctx.Err()
		}
	}
}

// reconcile starts a watch for each service that should be followed and has none, and stops the others.
func (w *Watcher) reconcile(ctx context.Context, offers map[string]Offer) {
	w.mu.Lock()
	want := map[string]Offer{}
	for name, o := range offers {
		if len(o.Models) > 0 || w.wanted[name] {
			want[name] = o
		}
	}
	var ended []*watched
	dirty := !w.listed
	w.listed = true
	for name, s := range w.services {
		if _, ok := want[name]; !ok {
			ended = append(ended, s)
			delete(w.services, name)
			dirty = true
		}
	}
	for name, o := range want {
		s := w.services[name]
		if s == nil {
			s = w.start(ctx, name)
			dirty = true
		}
		if !s.equal(o) {
			s.Offer = o
			dirty = true
			for _, wrong := range o.Wrong {
				w.log.Warn("a tag of a service is not understood and left out", "service", name, "problem", wrong)
			}
		}
	}
	if dirty {
		w.notify()
	}
	w.settle()
	w.mu.Unlock()
	for _, s := range ended {
		s.stop()
		<-s.done
	}
}

// settle notes that the first view is whole, once it is. The lock is held.
func (w *Watcher) settle() {
	for _, s := range w.services {
		if !s.asked {
			return
		}
	}
	w.synced = w.listed
}

// start follows one service. The lock is held.
func (w *Watcher) start(ctx context.Context, name string) *watched {
	ctx, cancel := context.WithCancel(ctx)
	s := &watched{Service: Service{Name: name}, stop: cancel, done: make(chan struct{})}
	w.services[name] = s
	go func() {
		defer close(s.done)
		w.follow(ctx, name, func(ctx context.Context, index uint64) (uint64, error) {
			instances, next, err := w.registry.Live(ctx, name, index)
			w.mu.Lock()
			defer w.mu.Unlock()
			s.asked = true
			defer w.settle()
			if err != nil {
				return next, err
			}
			slices.SortFunc(instances, func(a, b Instance) int { return strings.Compare(a.ID, b.ID) })
			if !slices.Equal(s.Instances, instances) {
				s.Instances = instances
				w.notify()
			}
			return next, nil
		})
	}()
	return s
}

// follow repeats a blocking query until the context ends, with a pause after an error.
func (w *Watcher) follow(ctx context.Context, what string, ask func(context.Context, uint64) (uint64, error)) {
	var index uint64
	failing := false
	for ctx.Err() == nil {
		next, err := ask(ctx, index)
		if ctx.Err() != nil {
			return
		}
		w.mu.Lock()
		w.lastErr = err
		w.mu.Unlock()
		if err != nil {
			if !failing {
				w.log.Warn("registry does not answer, keeping the last view", "what", what, "error", err)
			}
			failing = true
			clock.Sleep(ctx, clock.System(), w.backoff)
			index = 0 // a registry that restarted may have begun anew
			continue
		}
		failing = false
		if next < index {
			next = 0
		}
		index = next
	}
}

func (w *Watcher) stopAll() {
	w.mu.Lock()
	all := make([]*watched, 0, len(w.services))
	for _, s := range w.services {
		all = append(all, s)
	}
	w.mu.Unlock()
	for _, s := range all {
		s.stop()
		<-s.done
	}
}

// add takes what one list of tags says.
func (o *Offer) add(tags []string) {
	for _, tag := range tags {
		key, value, _ := strings.Cut(tag, "=")
		if value == "" {
			continue
		}
		switch key + "=" {
		case ModelTag:
			o.Models = append(o.Models, value)
		case PathTag:
			o.Paths = append(o.Paths, value)
		case ServedTag:
			o.Served = value
		case EngineTag:
			o.Engine = value
		case SlotsTag:
			o.number(tag, value, 1, 1<<20, &o.Slots)
		case ReadyPortTag, MetricsPortTag:
			o.number(tag, value, 1, 65535, new(int)) // each instance has its own
		case TriesTag:
			o.number(tag, value, 1, 5, &o.Times.Tries)
		case HeadersTag:
			o.duration(tag, value, &o.Times.Headers)
		case WholeTag:
			o.duration(tag, value, &o.Times.Whole)
		case FirstTokenTag:
			o.duration(tag, value, &o.Times.FirstToken)
		case IdleTag:
			o.duration(tag, value, &o.Times.Idle)
		}
	}
	slices.Sort(o.Wrong)
	o.Wrong = slices.Compact(o.Wrong)
	slices.Sort(o.Models)
	o.Models = slices.Compact(o.Models)
	slices.Sort(o.Paths)
	o.Paths = slices.Compact(o.Paths)
}

func (o *Offer) number(tag, text string, least, most int, to *int) {
	n, err := strconv.Atoi(text)
	if err != nil || n < least || n > most {
		o.Wrong = append(o.Wrong, fmt.Sprintf("%q: write a whole number from %d to %d", tag, least, most))
		return
	}
	*to = n
}

func (o *Offer) duration(tag, text string, to *time.Duration) {
	d, err := time.ParseDuration(text)
	if err != nil || d < time.Millisecond {
		o.Wrong = append(o.Wrong, fmt.Sprintf("%q: write a time such as 90s or 10m", tag))
		return
	}
	*to = d
}

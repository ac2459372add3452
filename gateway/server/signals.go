package server

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/gateway/route"
	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/inference"
	"github.com/heteroflow/heteroflow/internal/store"
)

// signalsEvery is between two tellings of how busy services are.
const signalsEvery = 10 * time.Second

type teller interface {
	TellSignals(ctx context.Context, signals []store.Signal) error
}

// signals tells how busy services are, for whoever decides how many instances they need.
type signals struct {
	gateway  string
	services func() []route.Service
	reading  func(service string) inference.Reading
	to       teller
	clock    clock.Clock
	log      hclog.Logger

	mu   sync.Mutex
	work map[string]*work // by service, since the last telling
	at   time.Time        // of that
}

// work is what came to its end.
type work struct {
	tokens int64
	firsts int
	first  time.Duration // sum over them
}

func newSignals(gateway string, services func() []route.Service, reading func(string) inference.Reading, to teller, c clock.Clock, log hclog.Logger) *signals {
	return &signals{gateway: gateway, services: services, reading: reading, to: to, clock: c, log: log, work: map[string]*work{}, at: c.Now()}
}

// observe counts a request that has ended.
func (s *signals) observe(u store.Usage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.work[u.Service]
	if w == nil {
		w = &work{}
		s.work[u.Service] = w
	}
	for _, n := range []*int64{u.PromptTokens, u.CompletionTokens} {
		if n != nil {
			w.tokens += *n
		}
	}
	if u.FirstByte > 0 && u.Stream { // a whole answer's first byte is its last
		w.firsts++
		w.first += u.FirstByte
	}
}

// Run tells until the context ends.
func (s *signals) Run(ctx context.Context) error {
	tick := s.clock.NewTicker(signalsEvery)
	defer tick.Stop()
	silent := false
	for {
		select {
		case <-tick.C():
		case <-ctx.Done():
			return ctx.Err()
		}
		limited, cancel := context.WithTimeout(ctx, signalsEvery/2)
		err := s.to.TellSignals(limited, s.take())
		cancel()
		if err != nil && !silent && ctx.Err() == nil {
			s.log.Warn("how busy services are could not be told", "error", err)
		}
		silent = err != nil
	}
}

// take gives the signals of now and begins anew to count.
func (s *signals) take() []store.Signal {
	now := s.clock.Now()
	s.mu.Lock()
	done, since := s.work, now.Sub(s.at)
	s.work, s.at = map[string]*work{}, now
	s.mu.Unlock()
	var list []store.Signal
	for _, service := range s.services() {
		one := store.Signal{Service: service.Name, Gateway: s.gateway, ToldAt: now}
		for _, b := range service.Pool.Status() {
			one.Backends++
			one.InFlight += b.InFlight
		}
		if service.Queue != nil {
			one.Held = service.Queue.Held()
		}
		if w := done[service.Name]; w != nil && since > 0 {
			one.TokensPerMinute = int64(math.Round(float64(w.tokens) / since.Minutes()))
			if w.firsts > 0 {
				one.FirstToken = new(w.first / time.Duration(w.firsts))
			}
		}
		r := s.reading(service.Name)
		one.EngineWaiting = r.Waiting
		if r.KVUse != nil {
			one.KVPermille = new(int(math.Round(1000 * *r.KVUse)))
		}
		list = append(list, one)
	}
	return list
}

package dev

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// group runs the parts. When one ends, all end: first what serves users, then the engine, so that nothing is given
// to an engine that is stopping its tasks.
type group struct {
	ctx    context.Context // ends when the parts shall end
	end    context.CancelCauseFunc
	first  part
	second part
}

type part struct {
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	mu     sync.Mutex
	errs   []error
}

func newGroup(ctx context.Context) *group {
	g := &group{}
	g.ctx, g.end = context.WithCancelCause(ctx)
	// The parts end when stop says so, in order, and not with the caller's context.
	free := context.WithoutCancel(ctx)
	g.first.ctx, g.first.cancel = context.WithCancel(free)
	g.second.ctx, g.second.cancel = context.WithCancel(free)
	return g
}

func (g *group) serve(name string, run func(context.Context) error)  { g.run(&g.first, name, run) }
func (g *group) engine(name string, run func(context.Context) error) { g.run(&g.second, name, run) }

func (g *group) run(p *part, name string, run func(context.Context) error) {
	p.wg.Go(func() {
		err := run(p.ctx)
		if err == nil && p.ctx.Err() == nil {
			err = errors.New("it ended by itself")
		}
		if err != nil {
			err = fmt.Errorf("%s: %w", name, err)
			p.mu.Lock()
			p.errs = append(p.errs, err)
			p.mu.Unlock()
		}
		g.end(err)
	})
}

// stop ends the parts in order and gives what went wrong in any.
func (g *group) stop() error {
	g.end(nil)
	var errs []error
	for _, p := range []*part{&g.first, &g.second} {
		p.cancel()
		p.wg.Wait()
		errs = append(errs, p.errs...)
	}
	return errors.Join(errs...)
}

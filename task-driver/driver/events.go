package driver

import (
	"context"
	"maps"
	"sync"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/heteroflow/heteroflow/internal/nomadplugin/driverpb"
)

// events hands texts about tasks to whoever listens. One that does not keep up loses the oldest: they are news, not
// state.
type events struct {
	mu        sync.Mutex
	listeners map[chan *driverpb.DriverTaskEvent]bool
}

const eventBuffer = 256

func newEvents() *events {
	return &events{listeners: map[chan *driverpb.DriverTaskEvent]bool{}}
}

func (e *events) emit(cfg *driverpb.TaskConfig, text string, annotations map[string]string) {
	event := &driverpb.DriverTaskEvent{
		TaskId: cfg.GetId(), AllocId: cfg.GetAllocId(), TaskName: cfg.GetName(), Timestamp: timestamppb.Now(),
		Message: text, Annotations: maps.Clone(annotations),
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for ch := range e.listeners {
		for sent := false; !sent; {
			select {
			case ch <- event:
				sent = true
			default:
				select {
				case <-ch:
				default:
				}
			}
		}
	}
}

func (e *events) listen() (chan *driverpb.DriverTaskEvent, func()) {
	ch := make(chan *driverpb.DriverTaskEvent, eventBuffer)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.listeners[ch] = true
	return ch, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.listeners, ch)
	}
}

// Events sends texts about tasks until ctx ends.
func (d *Driver) Events(ctx context.Context, send func(*driverpb.DriverTaskEvent) error) error {
	ch, stop := d.events.listen()
	defer stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case event := <-ch:
			if err := send(event); err != nil {
				return err
			}
		}
	}
}

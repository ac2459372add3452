package nomadhttp

import (
	"context"
	"net/http"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/embedded/client"
	"github.com/heteroflow/heteroflow/internal/embedded/core"
)

// offset reads a parameter that may be left out and not be negative.
func (q *request) offset(name string) (int64, error) {
	n, err := q.number(name)
	if err != nil {
		return 0, err
	}
	return int64(n), nil
}

func (q *request) origin() (string, error) {
	switch o := q.query.Get("origin"); o {
	case "", "start":
		return "start", nil
	case "end":
		return o, nil
	}
	return "", core.Bad("must provide origin as start or end")
}

func (q *request) logs(b client.Backend, id string) (any, error) {
	r := client.LogRequest{AllocID: id, Task: q.query.Get("task"), Type: q.query.Get("type")}
	var err error
	if r.Task == "" {
		return nil, core.Bad("must provide task name")
	}
	if r.Type != "stdout" && r.Type != "stderr" {
		return nil, core.Bad("must provide log type (stdout/stderr)")
	}
	if r.Origin, err = q.origin(); err != nil {
		return nil, err
	}
	if r.Offset, err = q.offset("offset"); err != nil {
		return nil, err
	}
	if r.Follow, err = q.flag("follow"); err != nil {
		return nil, err
	}
	return q.frames(func(ctx context.Context, send func(*api.StreamFrame) error) error { return b.Logs(ctx, r, send) }, r.Follow)
}

func (q *request) cat(b client.Backend, r client.StreamRequest) (any, error) {
	var err error
	if r.Offset, err = q.offset("offset"); err != nil {
		return nil, err
	}
	if r.Limit, err = q.offset("limit"); err != nil {
		return nil, err
	}
	q.query.Set("plain", "true")
	return q.frames(func(ctx context.Context, send func(*api.StreamFrame) error) error { return b.Stream(ctx, r, send) }, false)
}

func (q *request) stream(b client.Backend, r client.StreamRequest) (any, error) {
	var err error
	if r.Origin, err = q.origin(); err != nil {
		return nil, err
	}
	if r.Offset, err = q.offset("offset"); err != nil {
		return nil, err
	}
	return q.frames(func(ctx context.Context, send func(*api.StreamFrame) error) error { return b.Stream(ctx, r, send) }, r.Follow)
}

// frameBeat is how often a quiet frame stream says that it lives. Source: Nomad's own streams.
const frameBeat = time.Second * 10

// frames streams what a node reads, as JSON frames or, when plain is asked for, as it is.
func (q *request) frames(run func(context.Context, func(*api.StreamFrame) error) error, follow bool) (any, error) {
	plain, err := q.flag("plain")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(q.r.Context())
	defer cancel()
	frames := make(chan *api.StreamFrame)
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, func(f *api.StreamFrame) error {
			select {
			case frames <- f:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	out := newLines(q)
	beat := time.NewTicker(frameBeat)
	defer beat.Stop()
	started := false
	start := func() {
		if !started {
			started = true
			kind := "application/json"
			if plain {
				kind = "text/plain; charset=utf-8"
			}
			q.w.Header().Set("Content-Type", kind)
			q.w.WriteHeader(http.StatusOK)
		}
	}
	for {
		select {
		case f := <-frames:
			start()
			if !q.sendFrame(out, f, plain) {
				return noAnswer{}, nil
			}
		case <-beat.C:
			if follow && !plain {
				start()
				if !out.send(struct{}{}) {
					return noAnswer{}, nil
				}
			}
		case err := <-ended:
			if err != nil && !started && ctx.Err() == nil {
				return nil, err
			}
			start()
			if err != nil && ctx.Err() == nil {
				q.Logger.Debug("stream broke", "path", q.r.URL.Path, "error", err)
			}
			return noAnswer{}, nil
		}
	}
}

func (q *request) sendFrame(out *lines, f *api.StreamFrame, plain bool) bool {
	if !plain {
		return out.send(f)
	}
	if _, err := q.w.Write(f.Data); err != nil {
		return false
	}
	return out.flush.Flush() == nil
}

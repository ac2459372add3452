package nomadhttp

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/embedded/client"
	"github.com/heteroflow/heteroflow/internal/embedded/core"
	"github.com/heteroflow/heteroflow/internal/embedded/state"
)

// backend is the node side that runs an allocation.
func (q *request) backend(allocID string) (client.Backend, error) {
	var a *api.Allocation
	q.Core.Store().View(func(r state.Reader) { a = r.Alloc(allocID) })
	if a == nil {
		return nil, core.NotFound("Unknown allocation %q", allocID)
	}
	b := q.Host(a.NodeID)
	if b == nil {
		return nil, core.NotFound("Unknown node %q", a.NodeID)
	}
	return b, nil
}

// client answers the calls under /v1/client.
func (q *request) client() (any, error) {
	switch q.path[1] {
	case "fs":
		return q.files()
	case "allocation":
		if len(q.path) == 4 {
			return q.onAllocation(q.path[2], q.path[3])
		}
	case "metadata":
		return nil, core.Beyond("node metadata of the embedded engine comes from its configuration; Nomad can change it while running")
	case "gc":
		return q.nothingToDo()
	}
	return q.notHere()
}

func (q *request) files() (any, error) {
	if err := q.only(http.MethodGet); err != nil {
		return nil, err
	}
	if len(q.path) < 4 || q.path[3] == "" {
		return nil, core.Bad("must provide allocation id")
	}
	id := q.path[3]
	b, err := q.backend(id)
	if err != nil {
		return nil, err
	}
	path := q.query.Get("path")
	if path == "" {
		path = "/"
	}
	switch q.path[2] {
	case "logs":
		return q.logs(b, id)
	case "ls":
		files, err := b.List(id, path)
		return list(files), err
	case "stat":
		return b.Stat(id, path)
	case "cat", "readat":
		return q.cat(b, client.StreamRequest{AllocID: id, Path: path})
	case "stream":
		return q.stream(b, client.StreamRequest{AllocID: id, Path: path, Follow: q.query.Get("follow") != "false"})
	}
	return q.notHere()
}

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

func (q *request) onAllocation(id, action string) (any, error) {
	b, err := q.backend(id)
	if err != nil {
		return nil, err
	}
	switch action {
	case "stats":
		return b.AllocStats(id, q.query.Get("task"))
	case "checks":
		return q.checks(id)
	case "exec":
		return q.exec(b, id)
	case "pause":
		return nil, core.Beyond("task schedules need Nomad Enterprise")
	case "gc":
		return nil, nil
	case "restart":
		return q.restart(b, id)
	case "signal":
		return q.signal(b, id)
	}
	return q.notHere()
}

func (q *request) restart(b client.Backend, id string) (any, error) {
	if err := q.only(http.MethodPut); err != nil {
		return nil, err
	}
	var req struct {
		TaskName string
		AllTasks bool
	}
	if err := q.decodeIfAny(&req); err != nil {
		return nil, err
	}
	if req.AllTasks {
		req.TaskName = ""
	}
	return q.done(b.RestartTask(id, req.TaskName))
}

func (q *request) signal(b client.Backend, id string) (any, error) {
	if err := q.only(http.MethodPut); err != nil {
		return nil, err
	}
	var req struct{ Task, Signal string }
	if err := q.decode(&req); err != nil {
		return nil, err
	}
	return q.done(b.Signal(id, req.Task, req.Signal))
}

func (q *request) done(err error) (any, error) {
	if err != nil {
		return nil, err
	}
	index := q.Core.Store().Index()
	q.indexed(index)
	return map[string]uint64{"Index": index}, nil
}

func (q *request) checks(id string) (any, error) {
	b, err := q.backend(id)
	if err != nil {
		return nil, err
	}
	found, err := b.Checks(id)
	if found == nil {
		found = api.AllocCheckStatuses{}
	}
	return found, err
}

func (q *request) clientStats() (any, error) {
	id := q.query.Get("node_id")
	if id == "" {
		id = q.Local()
	}
	b := q.Host(id)
	if b == nil {
		return nil, core.NotFound("Unknown node %q", id)
	}
	return b.HostStats()
}

// command reads the command of an exec, a JSON list in the query.
func (q *request) command() ([]string, error) {
	var command []string
	if err := json.Unmarshal([]byte(q.query.Get("command")), &command); err != nil || len(command) == 0 {
		return nil, core.Bad("command is not present: write it as a JSON list of texts")
	}
	return command, nil
}

func (q *request) tty() bool {
	tty, err := strconv.ParseBool(strings.TrimSpace(q.query.Get("tty")))
	return err == nil && tty
}

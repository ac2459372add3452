package nomadhttp

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

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

package docker

import (
	"context"
	"slices"
	"strconv"
)

// PIDs are the processes of a container, by their numbers on the host. It returns ErrNotFound for a container that is gone.
func (e *Engine) PIDs(ctx context.Context, id string) ([]int, error) {
	top, err := e.cli.ContainerTop(ctx, id, []string{"-eo", "pid"})
	if err != nil {
		return nil, e.fault("list processes of container", err)
	}
	column := slices.Index(top.Titles, "PID")
	var pids []int
	for _, row := range top.Processes {
		if column < 0 || column >= len(row) {
			continue
		}
		if pid, err := strconv.Atoi(row[column]); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/clock"
)

// monitor follows an evaluation until the scheduler is done with it, in the manner of `nomad job run`.
type monitor struct {
	nomad *api.Client
	out   io.Writer
	short func(string) string
	every time.Duration // between looks; 0 is half a second
	seen  map[string]bool
	state string
}

const (
	lookEvery  = 500 * time.Millisecond
	lookErrors = 10 // in a row, before giving up
)

// run returns what the last evaluation was. Placement that failed is no error.
func (m *monitor) run(ctx context.Context, id string) (*api.Evaluation, error) {
	m.seen = map[string]bool{}
	if m.every == 0 {
		m.every = lookEvery
	}
	for {
		m.head("Monitoring evaluation %q", m.short(id))
		eval, err := m.follow(ctx, id)
		if err != nil {
			return nil, err
		}
		if eval.NextEval == "" || eval.Status == "complete" {
			m.conclude(eval)
			return eval, nil
		}
		if !clock.Sleep(ctx, clock.System(), eval.Wait) {
			return nil, ctx.Err()
		}
		id = eval.NextEval
	}
}

// follow looks at one evaluation until its status is final.
func (m *monitor) follow(ctx context.Context, id string) (*api.Evaluation, error) {
	q := (&api.QueryOptions{}).WithContext(ctx)
	failures := 0
	for {
		eval, _, err := m.nomad.Evaluations().Info(id, q)
		switch {
		case err != nil && ctx.Err() != nil:
			return nil, errors.New("stopped watching: the job goes on, see \"heteroflow job status\"")
		case err != nil:
			if failures++; failures == lookErrors {
				return nil, fmt.Errorf("read evaluation %s: %w", m.short(id), err)
			}
		default:
			failures = 0
			m.progress(ctx, eval)
			switch eval.Status {
			case "complete", "failed", "canceled":
				return eval, nil
			}
		}
		if !clock.Sleep(ctx, clock.System(), m.every) {
			return nil, ctx.Err()
		}
	}
}

func (m *monitor) progress(ctx context.Context, eval *api.Evaluation) {
	if m.state == "" {
		m.line("Evaluation triggered by job %q", eval.JobID)
	}
	allocs, _, err := m.nomad.Evaluations().Allocations(eval.ID, (&api.QueryOptions{}).WithContext(ctx))
	if err != nil {
		m.line("Allocations cannot be read now: %v", err)
	}
	slices.SortFunc(allocs, func(a, b *api.AllocationListStub) int { return int(a.CreateIndex) - int(b.CreateIndex) })
	for _, a := range allocs {
		if m.seen[a.ID] || a.DesiredStatus != api.AllocDesiredStatusRun {
			continue
		}
		m.seen[a.ID] = true
		what := "created"
		if a.CreateIndex < eval.CreateIndex {
			what = "modified"
		}
		m.line("Allocation %q %s: node %q, group %q", m.short(a.ID), what, cmp.Or(a.NodeName, m.short(a.NodeID)), a.TaskGroup)
	}
	if eval.Status != m.state {
		if m.state != "" || eval.Status != "pending" {
			m.line("Evaluation status changed: %q -> %q", cmp.Or(m.state, "pending"), eval.Status)
		}
		m.state = eval.Status
	}
}

func (m *monitor) conclude(eval *api.Evaluation) {
	if len(eval.FailedTGAllocs) == 0 {
		m.head("Evaluation %q finished with status %q", m.short(eval.ID), eval.Status)
		if eval.StatusDescription != "" && eval.Status != "complete" {
			m.line("%s", eval.StatusDescription)
		}
		return
	}
	m.head("Evaluation %q finished with status %q but failed to place all allocations:", m.short(eval.ID), eval.Status)
	for _, line := range reasons(eval.FailedTGAllocs) {
		m.line("%s", line)
	}
	if eval.BlockedEval != "" {
		m.line("Evaluation %q waiting for additional capacity to place remainder", m.short(eval.BlockedEval))
	}
}

func (m *monitor) head(format string, args ...any) { m.write("==>", format, args...) }
func (m *monitor) line(format string, args ...any) { m.write("   ", format, args...) }

func (m *monitor) write(mark, format string, args ...any) {
	fmt.Fprintf(m.out, "%s %s: %s\n", mark, time.Now().UTC().Format(time.RFC3339), fmt.Sprintf(format, args...))
}

// reasons says for each group why it was not placed.
func reasons(failed map[string]*api.AllocationMetric) (lines []string) {
	for _, group := range slices.Sorted(maps.Keys(failed)) {
		metric := failed[group]
		allocations := "allocation"
		if metric.CoalescedFailures > 0 {
			allocations = "allocations"
		}
		lines = append(lines, fmt.Sprintf("Task Group %q (failed to place %d %s):", group, metric.CoalescedFailures+1, allocations))
		for _, reason := range metricReasons(metric) {
			lines = append(lines, "  * "+reason)
		}
	}
	return lines
}

func metricReasons(metric *api.AllocationMetric) (out []string) {
	if metric.NodesEvaluated == 0 && len(metric.DimensionExhausted)+len(metric.ConstraintFiltered) == 0 {
		out = append(out, "No nodes were eligible for evaluation")
	}
	for _, dc := range slices.Sorted(maps.Keys(metric.NodesAvailable)) {
		if metric.NodesAvailable[dc] == 0 {
			out = append(out, fmt.Sprintf("No nodes are available in datacenter %q", dc))
		}
	}
	for _, reason := range slices.Sorted(maps.Keys(metric.ClassFiltered)) {
		out = append(out, fmt.Sprintf("Class %q: %d nodes excluded by filter", reason, metric.ClassFiltered[reason]))
	}
	for _, reason := range slices.Sorted(maps.Keys(metric.ConstraintFiltered)) {
		out = append(out, fmt.Sprintf("Constraint %q: %d nodes excluded by filter", reason, metric.ConstraintFiltered[reason]))
	}
	if metric.NodesExhausted > 0 {
		out = append(out, fmt.Sprintf("Resources exhausted on %d nodes", metric.NodesExhausted))
	}
	for _, reason := range slices.Sorted(maps.Keys(metric.DimensionExhausted)) {
		if strings.Contains(reason, " on ") { // a whole sentence, of the placement service
			out = append(out, reason)
			continue
		}
		out = append(out, fmt.Sprintf("Dimension %q exhausted on %d nodes", reason, metric.DimensionExhausted[reason]))
	}
	for _, quota := range metric.QuotaExhausted {
		out = append(out, fmt.Sprintf("Quota limit hit %q", quota))
	}
	return out
}

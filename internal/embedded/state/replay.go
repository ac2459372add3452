package state

import (
	"encoding/json"
	"fmt"

	"github.com/hashicorp/nomad/api"
)

// replay applies one entry of the journal.
func (s *Store) replay(e readEntry) error {
	s.index = max(s.index, e.Index)
	for _, r := range e.Records {
		if err := s.replayRow(r.Table, r.Key, r.Ref, r.Row); err != nil {
			return fmt.Errorf("row %q of %s: %w", r.Key, r.Table, err)
		}
	}
	return nil
}

func (s *Store) replayRow(name, key, ref string, row json.RawMessage) error {
	switch name {
	case "jobs":
		return load(s.jobs, key, row, nil)
	case "versions":
		return load(s.versions, key, row, nil)
	case "submissions":
		return load(s.submissions, key, row, nil)
	case "scales":
		return load(s.scales, key, row, nil)
	case "evals":
		return load(s.evals, key, row, nil)
	case "nodes":
		return load(s.nodes, key, row, nil)
	case "deployments":
		return load(s.deployments, key, row, nil)
	case "services":
		return load(s.services, key, row, nil)
	case "allocs":
		return load(s.allocs, key, row, func(a *api.Allocation) error {
			if a.Job = s.versions.rows[ref]; a.Job == nil {
				return fmt.Errorf("its job %q is missing", ref)
			}
			return nil
		})
	}
	return fmt.Errorf("unknown table: the state was written by a newer version")
}

func load[T any](t *table[T], key string, row json.RawMessage, finish func(*T) error) error {
	if len(row) == 0 {
		t.remove(key)
		return nil
	}
	value := new(T)
	if err := json.Unmarshal(row, value); err != nil {
		return err
	}
	if finish != nil {
		if err := finish(value); err != nil {
			return err
		}
	}
	t.put(key, value)
	return nil
}

// link sets the indexes of the tables after a start: nothing has changed since, but no reader knows that.
func (s *Store) link() {
	for _, name := range []string{"jobs", "evals", "allocs", "nodes", "deployments", "services"} {
		s.touched[name] = s.index
	}
}

// dump lists every row that the journal keeps, versions before the allocations that refer to them.
func (s *Store) dump() []record {
	var rows []record
	for key, row := range s.versions.rows {
		rows = append(rows, makeRecord("versions", key, row))
	}
	for key, row := range s.jobs.rows {
		rows = append(rows, makeRecord("jobs", key, row))
	}
	for key, row := range s.submissions.rows {
		rows = append(rows, makeRecord("submissions", key, row))
	}
	for key, row := range s.scales.rows {
		rows = append(rows, makeRecord("scales", key, row))
	}
	for key, row := range s.evals.rows {
		rows = append(rows, makeRecord("evals", key, row))
	}
	for key, row := range s.allocs.rows {
		rows = append(rows, makeRecord("allocs", key, row))
	}
	for key, row := range s.nodes.rows {
		if !Volatile(row) {
			rows = append(rows, makeRecord("nodes", key, row))
		}
	}
	for key, row := range s.deployments.rows {
		rows = append(rows, makeRecord("deployments", key, row))
	}
	for key, row := range s.services.rows {
		rows = append(rows, makeRecord("services", key, row))
	}
	return rows
}

// SimulatedAttribute marks a node that exists in this process only.
const SimulatedAttribute = "heteroflow.simulated"

// Volatile reports whether a node is stated anew at every start, and so is not kept.
func Volatile(n *api.Node) bool { return n.Attributes[SimulatedAttribute] == "true" }

package sim

import (
	"fmt"
	"strconv"
	"time"

	"github.com/hashicorp/nomad/api"
)

// behaviour is what a pretended allocation does.
type behaviour struct {
	runFor     time.Duration // 0: until it is stopped
	exitCode   int
	startError string
}

// program reads what an allocation is to do: from its tasks' config (run_for, exit_code, start_error) or, for drivers
// whose config has no such keys, from meta (sim_run_for, sim_exit_code, sim_start_error). The longest task counts.
func program(a *api.Allocation) behaviour {
	var b behaviour
	group := a.GetTaskGroup()
	for _, t := range tasks(a) {
		get := func(key string) string {
			if v, ok := t.Config[key]; ok {
				return fmt.Sprint(v)
			}
			for _, meta := range []map[string]string{t.Meta, group.Meta, a.Job.Meta} {
				if v, ok := meta["sim_"+key]; ok {
					return v
				}
			}
			return ""
		}
		if d, err := time.ParseDuration(get("run_for")); err == nil {
			b.runFor = max(b.runFor, d)
		}
		if code, err := strconv.Atoi(get("exit_code")); err == nil && code != 0 {
			b.exitCode = code
		}
		if why := get("start_error"); why != "" {
			b.startError = why
		}
	}
	return b
}

func tasks(a *api.Allocation) []*api.Task {
	if g := a.GetTaskGroup(); g != nil {
		return g.Tasks
	}
	return nil
}

func itoa(n int) string { return strconv.Itoa(n) }

// services are the registrations of an allocation whose services ask for Nomad's own registry.
func services(a *api.Allocation) []*api.ServiceRegistration {
	g := a.GetTaskGroup()
	if g == nil {
		return nil
	}
	all := append([]*api.Service{}, g.Services...)
	for _, t := range g.Tasks {
		all = append(all, t.Services...)
	}
	var regs []*api.ServiceRegistration
	for _, s := range all {
		if s.Provider != "nomad" {
			continue
		}
		r := &api.ServiceRegistration{
			ID: fmt.Sprintf("_nomad-task-%s-group-%s-%s-%s", a.ID, a.TaskGroup, s.Name, s.PortLabel), ServiceName: s.Name,
			Namespace: a.Namespace, NodeID: a.NodeID, JobID: a.JobID, AllocID: a.ID, Tags: s.Tags, Address: "127.0.0.1", Datacenter: "dc1",
		}
		if n, err := strconv.Atoi(s.PortLabel); err == nil {
			r.Port = n
		}
		for _, p := range a.AllocatedResources.Shared.Ports {
			if p.Label == s.PortLabel {
				r.Port, r.Address = p.Value, p.HostIP
			}
		}
		regs = append(regs, r)
	}
	return regs
}

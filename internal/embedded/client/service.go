package client

import (
	"context"
	"fmt"
	"maps"
	"net"
	"strconv"

	consul "github.com/hashicorp/consul/api"
	"github.com/hashicorp/nomad/api"
)

// providerNomad is the registry of the engine itself; the other one is Consul.
const providerNomad = "nomad"

// serviceSet is what one task, or the group, has registered.
type serviceSet struct {
	regs   []*api.ServiceRegistration
	consul []string // ids
	checks []*checkRunner
}

// addServices registers the services of a running task, or with an empty name those of the group. A second call
// changes nothing.
func (ar *allocRunner) addServices(task string) {
	ar.mu.Lock()
	_, have := ar.services[task]
	ar.mu.Unlock()
	if have {
		return
	}
	set := ar.buildServices(task)
	ar.mu.Lock()
	ar.services[task] = set
	ar.mu.Unlock()
	ar.tellServices()
}

// dropServices takes them away again.
func (ar *allocRunner) dropServices(ctx context.Context, task string) {
	ar.mu.Lock()
	set := ar.services[task]
	delete(ar.services, task)
	ar.mu.Unlock()
	if set == nil {
		return
	}
	for _, c := range set.checks {
		c.stop()
	}
	ar.client.consul.remove(ctx, set.consul)
	ar.tellServices()
}

// refreshServices registers anew after a change of the job in place.
func (ar *allocRunner) refreshServices() {
	ar.mu.Lock()
	names := []string{}
	for name := range ar.services {
		names = append(names, name)
	}
	ar.mu.Unlock()
	for _, name := range names {
		fresh := ar.buildServices(name)
		ar.mu.Lock()
		old := ar.services[name]
		ar.services[name] = fresh
		ar.mu.Unlock()
		if old == nil {
			continue
		}
		for _, c := range old.checks {
			c.stop()
		}
		kept := map[string]bool{}
		for _, id := range fresh.consul {
			kept[id] = true
		}
		var gone []string
		for _, id := range old.consul {
			if !kept[id] {
				gone = append(gone, id)
			}
		}
		ar.client.consul.remove(context.Background(), gone)
	}
	ar.tellServices()
}

func (ar *allocRunner) tellServices() {
	ar.mu.Lock()
	regs := []*api.ServiceRegistration{}
	for _, set := range ar.services {
		regs = append(regs, set.regs...)
	}
	ar.mu.Unlock()
	ar.client.cfg.Up.UpdateServices(ar.id, regs)
}

// buildServices interpolates and addresses the services of a task or of the group.
func (ar *allocRunner) buildServices(name string) *serviceSet {
	alloc, tg := ar.desired()
	set := &serviceSet{}
	owner, services, task := "group-"+alloc.TaskGroup, tg.Services, &api.Task{}
	if name != "" {
		owner = name
		if task = findTask(tg, name); task == nil {
			return set
		}
		services = task.Services
	}
	conf := ar.client.cfg.Node
	env := nomadEnv(alloc, tg, task, conf, taskPaths{})
	in := interpolator{node: ar.client.node(), env: env}
	env = taskEnv(nil, env, task.Env, nil, nil, in.node)
	in.env = env
	for _, s := range services {
		ar.addService(set, alloc, s, owner, name, in)
	}
	return set
}

func findTask(tg *api.TaskGroup, name string) *api.Task {
	for _, t := range tg.Tasks {
		if t.Name == name {
			return t
		}
	}
	return nil
}

func (ar *allocRunner) addService(set *serviceSet, alloc *api.Allocation, s *api.Service, owner, task string, in interpolator) {
	conf := ar.client.cfg.Node
	address, port := servicePort(alloc, s.PortLabel, conf.HostIP)
	if s.Address != "" {
		address = in.text(s.Address)
	}
	tags := s.Tags
	if alloc.DeploymentStatus != nil && alloc.DeploymentStatus.Canary && len(s.CanaryTags) > 0 {
		tags = s.CanaryTags
	}
	reg := &api.ServiceRegistration{
		ID: fmt.Sprintf("_nomad-task-%s-%s-%s-%s", alloc.ID, owner, in.text(s.Name), s.PortLabel), ServiceName: in.text(s.Name),
		Namespace: alloc.Namespace, NodeID: conf.ID, Datacenter: conf.Datacenter, JobID: alloc.JobID, AllocID: alloc.ID,
		Address: address, Port: port, Tags: []string{},
	}
	for _, t := range tags {
		reg.Tags = append(reg.Tags, in.text(t))
	}
	if s.Provider == providerNomad {
		set.regs = append(set.regs, reg)
		for n := range s.Checks {
			check := s.Checks[n]
			if check.CheckRestart == nil {
				check.CheckRestart = s.CheckRestart
			}
			c := newCheckRunner(ar, reg, &check, n, task, in)
			set.checks = append(set.checks, c)
			ar.startCheck(c)
		}
		return
	}
	if ar.client.consul.put(consulRegistration(reg, s, in, func(label string) (string, int) {
		if label == "" {
			label = s.PortLabel
		}
		return servicePort(alloc, label, conf.HostIP)
	})) {
		set.consul = append(set.consul, reg.ID)
	}
}

// servicePort finds the address of a port label, or takes a plain number as a port of the node.
func servicePort(alloc *api.Allocation, label, hostIP string) (string, int) {
	for _, p := range allocPorts(alloc, hostIP) {
		if p.Label == label {
			return p.HostIP, p.Value
		}
	}
	if n, err := strconv.Atoi(label); err == nil {
		return hostIP, n
	}
	return hostIP, 0
}

// consulRegistration is the same service as Consul takes it, with its checks.
func consulRegistration(reg *api.ServiceRegistration, s *api.Service, in interpolator, portOf func(string) (string, int)) *consul.AgentServiceRegistration {
	out := &consul.AgentServiceRegistration{
		ID: reg.ID, Name: reg.ServiceName, Tags: reg.Tags, Address: reg.Address, Port: reg.Port,
		EnableTagOverride: s.EnableTagOverride, Meta: map[string]string{"external-source": "nomad"},
	}
	for k, v := range s.Meta {
		out.Meta[k] = in.text(v)
	}
	for n := range s.Checks {
		c := &s.Checks[n]
		ip, port := portOf(c.PortLabel)
		addr := net.JoinHostPort(ip, strconv.Itoa(port))
		check := &consul.AgentServiceCheck{
			Name: checkName(c, reg.ServiceName), Interval: checkInterval(c).String(), Timeout: checkTimeout(c).String(),
			Status: c.InitialStatus, Notes: c.Notes, SuccessBeforePassing: c.SuccessBeforePassing, FailuresBeforeCritical: c.FailuresBeforeCritical,
		}
		switch c.Type {
		case "http":
			check.HTTP, check.Method, check.Body, check.TLSSkipVerify = checkURL(c, addr, in), c.Method, in.text(c.Body), c.TLSSkipVerify
			check.Header = maps.Clone(c.Header)
		case "grpc":
			check.GRPC, check.GRPCUseTLS = addr, c.GRPCUseTLS
		default:
			check.TCP = addr
		}
		out.Checks = append(out.Checks, check)
	}
	return out
}

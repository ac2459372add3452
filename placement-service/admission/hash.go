package admission

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/placement-service/engine"
)

// askHash names what the placement of a group depends on. The count is not part of it: more of the same may fit
// beside what runs.
func askHash(r engine.Request, g engine.GroupAsk) string {
	g.Count, g.Keep = 0, nil
	g.Tasks = slices.Clone(g.Tasks)
	for i := range g.Tasks {
		if g.Tasks[i].Runtime == runtimeDocker { // what a task runs in when nothing is said changes no name
			g.Tasks[i].Runtime = ""
		}
	}
	return sum(engine.Request{
		Datacenters: r.Datacenters, NodePool: r.NodePool, Loose: r.Loose, DistinctHosts: r.DistinctHosts, Groups: []engine.GroupAsk{g},
	})
}

func sum(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("encode plain values: %v", err)) // trees come from JSON, requests are plain structs
	}
	digest := sha256.Sum256(text)
	return hex.EncodeToString(digest[:16])
}

// SpecHash names the user's job: two jobs with one hash run the same. Injections, fields that Nomad counts up and
// the difference between a default and its absence do not change it; fields that this version does not know do. An
// error means that Nomad would not read the job either.
func SpecHash(job Tree) (string, error) {
	known, unknown, err := canonical(job)
	if err != nil {
		return "", err
	}
	return sum([]any{known, unknown}), nil
}

// canonical is the job with Nomad's defaults, and what the job has beyond the fields that this version knows, both compact.
func canonical(job Tree) (known, unknown any, err error) {
	// A job may hold null anywhere in its lists, which the API's own defaulting does not expect.
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("read job: a list holds null where an object belongs")
		}
	}()
	stripped := Strip(job)
	text, err := json.Marshal(stripped)
	if err != nil {
		return nil, nil, fmt.Errorf("encode job: %w", err)
	}
	var typed api.Job
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	if err := dec.Decode(&typed); err != nil {
		return nil, nil, fmt.Errorf("read job: %w", err)
	}
	dropServerFields(stripped)
	unknown = compact(beyond(map[string]any(stripped), reflect.TypeFor[api.Job]()))
	typed.Canonicalize()
	settle(&typed)
	known, err = compactOf(reflect.ValueOf(typed))
	return known, unknown, err
}

// dropServerFields takes out what only Nomad's servers write into a job and no client can: the namespace of a service.
func dropServerFields(job Tree) {
	for _, g := range objects(job, "TaskGroups") {
		for _, holder := range append(objects(g, "Tasks"), g) {
			for _, s := range objects(holder, "Services") {
				unset(s, "Namespace")
			}
		}
	}
}

// settle clears what Nomad counts up or adds by itself, so that a job read back from it equals the one sent.
func settle(j *api.Job) {
	j.Version, j.SubmitTime, j.CreateIndex, j.ModifyIndex, j.JobModifyIndex = nil, nil, nil, nil, nil
	j.Status, j.StatusDescription, j.Stable, j.VersionTag, j.NomadTokenID = nil, nil, nil, nil, nil
	j.Update = nil // its groups have it by now
	if j.NodePool != nil && *j.NodePool == "default" {
		j.NodePool = nil
	}
	if slices.Equal(j.Datacenters, []string{"*"}) {
		j.Datacenters = nil
	}
	for _, g := range j.TaskGroups {
		g.Constraints = slices.DeleteFunc(g.Constraints, func(c *api.Constraint) bool {
			return implied(engine.Constraint{L: c.LTarget, R: c.RTarget, Operand: c.Operand})
		})
		g.Consul = settleConsul(g.Consul)
		for _, n := range g.Networks {
			settlePorts(n.DynamicPorts)
			settlePorts(n.ReservedPorts)
		}
		settleServices(g.Services, deref(j.ID), deref(g.Name), "")
		for _, t := range g.Tasks {
			settleServices(t.Services, deref(j.ID), deref(g.Name), t.Name)
			t.Consul = settleConsul(t.Consul)
			if t.Identity != nil && isDefaultIdentity(t.Identity) {
				t.Identity = nil
			}
		}
	}
}

// settleConsul drops a block that says what holds without it.
func settleConsul(c *api.Consul) *api.Consul {
	if c != nil && (*c == api.Consul{} || *c == api.Consul{Cluster: "default"}) {
		return nil
	}
	return c
}

func settlePorts(ports []api.Port) {
	for i := range ports {
		if ports[i].HostNetwork == "default" {
			ports[i].HostNetwork = ""
		}
	}
}

// settleServices clears names that Nomad gives to services and checks without one.
func settleServices(services []*api.Service, job, group, task string) {
	for _, s := range services {
		if s.Name == strings.Join([]string{job, group, cmp.Or(task, "group")}, "-") {
			s.Name = ""
		}
		if s.Cluster == "default" {
			s.Cluster = ""
		}
		for i := range s.Checks {
			if s.Checks[i].Name == fmt.Sprintf("service: %q check", s.Name) {
				s.Checks[i].Name = ""
			}
		}
	}
}

func isDefaultIdentity(i *api.WorkloadIdentity) bool {
	return (i.Name == "" || i.Name == "default") && !i.Env && !i.File && i.Filepath == "" && i.ChangeMode == "" && i.ServiceName == "" && i.TTL == 0
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// compact drops nulls, zeros and empty values at any depth and writes numbers in one way, so that a default and its
// absence are equal. Lists keep their length.
func compact(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for k, x := range v {
			if x = compact(x); x != nil {
				out[k] = x
			}
		}
		if len(out) == 0 {
			return nil
		}
		return out
	case []any:
		if len(v) == 0 {
			return nil
		}
		out := make([]any, len(v))
		for i, x := range v {
			out[i] = compact(x)
		}
		return out
	case string:
		if v == "" {
			return nil
		}
	case bool:
		if !v {
			return nil
		}
	case json.Number:
		return number(v)
	}
	return v
}

// number writes 1, 1.0 and 1e0 alike; nil for zero.
func number(n json.Number) any {
	if i, err := n.Int64(); err == nil {
		if i == 0 {
			return nil
		}
		return i
	}
	f, err := n.Float64()
	switch {
	case err != nil:
		return n.String()
	case f == 0:
		return nil
	case f == float64(int64(f)):
		return int64(f)
	}
	return strconv.FormatFloat(f, 'g', -1, 64)
}

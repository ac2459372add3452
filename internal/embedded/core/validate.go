package core

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/go-multierror"
	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/clock"
)

// Validate checks a job as register does. The texts are Nomad's where Nomad has the same check.
func (c *Core) Validate(j *api.Job) *api.JobValidateResponse {
	out := &api.JobValidateResponse{DriverConfigValidated: true}
	err := c.admit(j)
	if j != nil {
		out.Warnings = warnings(j)
	}
	if err == nil {
		return out
	}
	out.Error = err.Error()
	if refused := new(refusal); errors.As(err, &refused) {
		for _, e := range refused.cause.Errors {
			out.ValidationErrors = append(out.ValidationErrors, e.Error())
		}
		return out
	}
	out.ValidationErrors = []string{err.Error()}
	return out
}

// refusal is a job that does not pass, with each of its faults.
type refusal struct {
	err   Error
	cause *multierror.Error
}

func (r *refusal) Error() string { return r.err.Text }
func (r *refusal) Unwrap() error { return &r.err }

func validate(j *api.Job, pools map[string]bool) error {
	faults := &multierror.Error{}
	add := func(format string, args ...any) { faults = multierror.Append(faults, fmt.Errorf(format, args...)) }
	switch id := *j.ID; {
	case id == "":
		add("Missing job ID")
	case strings.Contains(id, " "):
		add("Job ID contains a space")
	case strings.Contains(id, "\x00"):
		add("Job ID contains a null character")
	}
	if *j.Name == "" {
		add("Missing job name")
	}
	if *j.Namespace != api.DefaultNamespace {
		add("job %q is in nonexistent namespace %q", *j.ID, *j.Namespace)
	}
	if !pools[*j.NodePool] {
		add("job %q is in nonexistent node pool %q", *j.ID, *j.NodePool)
	}
	if *j.Region != api.GlobalRegion && *j.Region != "" {
		add("job %q is for region %q: the embedded engine is one machine in region \"global\", more regions need Nomad", *j.ID, *j.Region)
	}
	if !slices.Contains([]string{api.JobTypeService, api.JobTypeBatch, api.JobTypeSystem, api.JobTypeSysbatch}, *j.Type) {
		add("Invalid job type: %q", *j.Type)
	}
	if *j.Priority < 1 || *j.Priority > 100 {
		add("Job priority must be between [1, 100]")
	}
	for i, dc := range j.Datacenters {
		if dc == "" {
			add("Job datacenter %d must be non-empty string", i+1)
		}
	}
	if len(j.TaskGroups) == 0 {
		add("Missing job task groups")
	}
	if j.Multiregion != nil && len(j.Multiregion.Regions) > 0 {
		add("multiregion jobs need Nomad Enterprise: the embedded engine is one machine")
	}
	constraints(j.Constraints, add)
	system := *j.Type == api.JobTypeSystem || *j.Type == api.JobTypeSysbatch
	if system && len(j.Affinities) > 0 {
		add("System jobs may not have an affinity block")
	}
	if j.Periodic != nil {
		periodic(j, add)
	}
	seen := map[string]int{}
	for i, g := range j.TaskGroups {
		switch first, again := seen[*g.Name]; {
		case *g.Name == "":
			add("Job task group %d missing name", i+1)
		case again:
			add("Job task group %d redefines '%s' from group %d", i+1, *g.Name, first+1)
		default:
			seen[*g.Name] = i
		}
	}
	for _, g := range j.TaskGroups {
		if err := group(j, g); err != nil {
			add("Task group %s validation failed: %s", *g.Name, err)
		}
	}
	if err := faults.ErrorOrNil(); err != nil {
		return &refusal{err: Error{Status: 500, Text: err.Error()}, cause: faults}
	}
	return nil
}

func periodic(j *api.Job, add func(string, ...any)) {
	if *j.Type != api.JobTypeBatch && *j.Type != api.JobTypeSysbatch {
		add("Periodic can only be used with %q or %q scheduler", api.JobTypeBatch, api.JobTypeSysbatch)
	}
	if _, err := nextLaunch(j, clock.System().Now()); err != nil {
		add("%s", err)
	}
}

func group(j *api.Job, g *api.TaskGroup) error {
	faults := &multierror.Error{}
	add := func(format string, args ...any) { faults = multierror.Append(faults, fmt.Errorf(format, args...)) }
	if *g.Count < 0 {
		add("Task group count can't be negative")
	}
	if len(g.Tasks) == 0 {
		add("Missing tasks for task group")
	}
	constraints(g.Constraints, add)
	for _, v := range g.Volumes {
		if v.Type == "csi" {
			add("volume %q is a CSI volume: the embedded engine has none, Nomad has", v.Name)
		}
	}
	seen := map[string]int{}
	for i, t := range g.Tasks {
		switch first, again := seen[t.Name]; {
		case t.Name == "":
			add("Task %d missing name", i+1)
		case again:
			add("Task %d redefines '%s' from task %d", i+1, t.Name, first+1)
		default:
			seen[t.Name] = i
		}
	}
	services := slices.Clone(g.Services)
	for _, t := range g.Tasks {
		services = append(services, t.Services...)
		if err := task(t); err != nil {
			add("Task %s validation failed: %s", t.Name, err)
		}
	}
	for _, s := range services {
		if s.Connect != nil {
			add("service %q uses connect: the embedded engine has no service mesh, Nomad with Consul has", s.Name)
		}
	}
	return faults.ErrorOrNil()
}

func task(t *api.Task) error {
	faults := &multierror.Error{}
	add := func(format string, args ...any) { faults = multierror.Append(faults, fmt.Errorf(format, args...)) }
	if strings.ContainsAny(t.Name, `/\`) {
		add("Task name cannot include slashes")
	}
	if t.Driver == "" {
		add("Missing task driver")
	}
	if t.KillTimeout != nil && *t.KillTimeout < 0 {
		add("KillTimeout must be a positive value")
	}
	if t.Vault != nil {
		add("the vault block needs Vault: the embedded engine has none, Nomad has")
	}
	if r := t.Resources; r != nil {
		if r.CPU != nil && *r.CPU < 1 && (r.Cores == nil || *r.Cores == 0) {
			add("minimum CPU value is 1; got %d", *r.CPU)
		}
		if r.MemoryMB != nil && *r.MemoryMB < 10 {
			add("minimum MemoryMB value is 10; got %d", *r.MemoryMB)
		}
		for i, d := range r.Devices {
			if err := device(d); err != nil {
				add("device %d failed validation: %s", i+1, err)
			}
		}
	}
	constraints(t.Constraints, add)
	return faults.ErrorOrNil()
}

func device(d *api.RequestedDevice) error {
	faults := &multierror.Error{}
	add := func(format string, args ...any) { faults = multierror.Append(faults, fmt.Errorf(format, args...)) }
	if d.Name == "" {
		add("device name must be given as one of the following: type, vendor/type, or vendor/type/name")
	}
	constraints(d.Constraints, add)
	for i, k := range d.Constraints {
		if k.Operand == api.ConstraintDistinctHosts || k.Operand == api.ConstraintDistinctProperty {
			add("constraint %d: %s is not allowed in a device block", i+1, k.Operand)
		}
	}
	for i, a := range d.Affinities {
		if a.Weight == nil || *a.Weight == 0 {
			add("affinity %d: weight cannot be zero", i+1)
		}
	}
	return faults.ErrorOrNil()
}

var operands = []string{
	"", "=", "==", "is", "!=", "not", "<", "<=", ">", ">=",
	api.ConstraintDistinctHosts, api.ConstraintDistinctProperty, api.ConstraintRegex, api.ConstraintVersion, api.ConstraintSemver,
	api.ConstraintSetContains, api.ConstraintSetContainsAll, api.ConstraintSetContainsAny, api.ConstraintAttributeIsSet, api.ConstraintAttributeIsNotSet,
}

func constraints(list []*api.Constraint, add func(string, ...any)) {
	for i, k := range list {
		if !slices.Contains(operands, k.Operand) {
			add("Constraint %d validation failed: Unknown constraint type %q", i+1, k.Operand)
		}
	}
}

// warnings tells what the engine does differently from what a job asks for, in Nomad's form.
func warnings(j *api.Job) string {
	var lines []string
	for _, g := range j.TaskGroups {
		if g.Update != nil && g.Update.Canary != nil && *g.Update.Canary > 0 {
			lines = append(lines, fmt.Sprintf("group %q asks for canaries: the embedded engine has none and updates max_parallel at a time", *g.Name))
		}
	}
	return joinWarnings("", lines...)
}

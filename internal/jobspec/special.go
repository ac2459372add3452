package jobspec

import (
	"cmp"
	"fmt"
	"reflect"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
)

var (
	jobType        = reflect.TypeFor[api.Job]()
	groupType      = reflect.TypeFor[api.TaskGroup]()
	taskType       = reflect.TypeFor[api.Task]()
	constraintType = reflect.TypeFor[api.Constraint]()
	affinityType   = reflect.TypeFor[api.Affinity]()
)

// operatorArguments are the short ways to write an operator: version = ">= 1" for operator = "version" with
// value = ">= 1".
var operatorArguments = map[reflect.Type]map[string]func(target any, name string, value cty.Value) error{
	constraintType: {
		api.ConstraintVersion: valueOperator, api.ConstraintSemver: valueOperator, api.ConstraintRegex: valueOperator,
		api.ConstraintSetContains: valueOperator, api.ConstraintSetContainsAll: refuseOperator, api.ConstraintSetContainsAny: refuseOperator,
		api.ConstraintAttributeIsSet: refuseOperator, api.ConstraintAttributeIsNotSet: refuseOperator,
		api.ConstraintDistinctHosts: valueOperator, api.ConstraintDistinctProperty: propertyOperator,
	},
	affinityType: {
		api.ConstraintVersion: valueOperator, api.ConstraintSemver: valueOperator, api.ConstraintRegex: valueOperator,
		api.ConstraintSetContains: valueOperator, api.ConstraintSetContainsAll: valueOperator, api.ConstraintSetContainsAny: valueOperator,
	},
}

func operatorText(value cty.Value) (string, error) {
	text, err := convert.Convert(value, cty.String)
	if err != nil || text.IsNull() {
		return "", err
	}
	return text.AsString(), nil
}

func valueOperator(target any, name string, value cty.Value) error {
	text, err := operatorText(value)
	switch c := target.(type) {
	case *api.Constraint:
		c.Operand, c.RTarget = name, text
	case *api.Affinity:
		c.Operand, c.RTarget = name, text
	}
	return err
}

// refuseOperator is for names that Nomad's own reader accepts in a constraint and then drops without a word.
func refuseOperator(_ any, name string, _ cty.Value) error {
	return fmt.Errorf("this short form is dropped by Nomad: write operator = %q, and the right side as value = …", name)
}

// propertyOperator is distinct_property = "${meta.rack}": the value is the attribute.
func propertyOperator(target any, name string, value cty.Value) error {
	text, err := operatorText(value)
	c := target.(*api.Constraint)
	c.Operand, c.LTarget = name, text
	return err
}

// extraBlocks are the blocks that Nomad reads in a place where the API's struct has no field for them, or reads
// differently from the struct's tags.
func extraBlocks(t reflect.Type) map[string]func(p *parser, b block, target any) {
	switch t {
	case jobType:
		return map[string]func(*parser, block, any){"task": lonelyTask, "vault": sharedVault}
	case groupType:
		return map[string]func(*parser, block, any){"vault": sharedVault, "scaling": groupScaling}
	case taskType:
		return map[string]func(*parser, block, any){"scaling": taskScaling, "identity": taskIdentity}
	}
	return nil
}

// lonelyTask is a task directly in the job: a group of its own name with this one task.
func lonelyTask(p *parser, b block, _ any) {
	task := &api.Task{}
	if p.labelled(b, reflect.ValueOf(task).Elem()) {
		name := task.Name
		p.lonely = append(p.lonely, &api.TaskGroup{Name: &name, Tasks: []*api.Task{task}})
	}
}

func sharedVault(p *parser, b block, target any) {
	vault := &api.Vault{}
	if !p.labelled(b, reflect.ValueOf(vault).Elem()) {
		return
	}
	switch t := target.(type) {
	case *api.Job:
		p.jobVault = vault
	case *api.TaskGroup:
		if p.groupVault == nil {
			p.groupVault = map[*api.TaskGroup]*api.Vault{}
		}
		p.groupVault[t] = vault
	}
}

func groupScaling(p *parser, b block, target any) {
	policy := &api.ScalingPolicy{Type: "horizontal"}
	if p.labels(b.Block, 0) {
		p.structBody(b, policy)
		target.(*api.TaskGroup).Scaling = policy
	}
}

// taskScaling is scaling "cpu" or "mem": the label says which resource the policy changes.
func taskScaling(p *parser, b block, target any) {
	if !p.labels(b.Block, 1) {
		return
	}
	kind, ok := map[string]string{"cpu": "vertical_cpu", "mem": "vertical_mem"}[b.Labels[0]]
	if !ok {
		p.errorf(b.LabelRanges[0], "unknown scaling policy", `write scaling "cpu" or scaling "mem"`)
		return
	}
	policy := &api.ScalingPolicy{Type: kind}
	p.structBody(b, policy)
	task := target.(*api.Task)
	task.ScalingPolicies = append(task.ScalingPolicies, policy)
}

// taskIdentity tells the task's default identity, which has no name or the name "default", from further ones.
func taskIdentity(p *parser, b block, target any) {
	identity := &api.WorkloadIdentity{}
	if !p.labelled(b, reflect.ValueOf(identity).Elem()) {
		return
	}
	task := target.(*api.Task)
	if identity.Name == "" || identity.Name == "default" {
		task.Identity = identity
		return
	}
	task.Identities = append(task.Identities, identity)
}

// settle fills in what Nomad's reader, not its server, gives to a block that leaves it out.
func settle(target any) {
	switch t := target.(type) {
	case *api.Constraint:
		t.Operand = cmp.Or(t.Operand, "=")
	case *api.Affinity:
		t.Operand = cmp.Or(t.Operand, "=")
	case *api.NetworkResource:
		settlePorts(t)
	case *api.PeriodicConfig:
		t.SpecType = pointerOr(t.SpecType, api.PeriodicSpecCron)
	case *api.Vault:
		t.Env = pointerOr(t.Env, true)
		t.DisableFile = pointerOr(t.DisableFile, false)
		t.ChangeMode = pointerOr(t.ChangeMode, "restart")
	case *api.Template:
		t.ChangeMode = pointerOr(t.ChangeMode, "restart")
		t.Splay = pointerOr(t.Splay, 5*time.Second)
		t.Perms = pointerOr(t.Perms, "0644")
		t.ErrMissingKey = pointerOr(t.ErrMissingKey, false)
	case *api.ChangeScript:
		t.Canonicalize()
	}
}

func pointerOr[T any](value *T, otherwise T) *T {
	if value == nil {
		return &otherwise
	}
	return value
}

// settlePorts moves the ports with a fixed number to where the API keeps them.
func settlePorts(network *api.NetworkResource) {
	ports := network.DynamicPorts
	network.DynamicPorts = nil
	for _, port := range ports {
		if port.Value != 0 {
			network.ReservedPorts = append(network.ReservedPorts, port)
		} else {
			network.DynamicPorts = append(network.DynamicPorts, port)
		}
	}
}

// finish orders the groups as Nomad does, single tasks first, and hands vault blocks down to the tasks.
func (p *parser) finish(job *api.Job) {
	job.TaskGroups = append(p.lonely, job.TaskGroups...)
	for _, group := range job.TaskGroups {
		for _, task := range group.Tasks {
			if task.Vault == nil {
				task.Vault = p.groupVault[group]
			}
			if task.Vault == nil {
				task.Vault = p.jobVault
			}
		}
	}
}

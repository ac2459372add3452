package admission

import (
	"cmp"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/heteroflow/heteroflow/internal/grant"
	"github.com/heteroflow/heteroflow/placement-service/engine"
)

// injectionVersion is the format of an Injection. Another one is not applied, so that its groups are decided anew.
const injectionVersion = 1

// Inject writes a placed decision into a job, for each group that the decision has a plan for; the job is one that
// Strip or Apply gave. The same input always gives the same job.
func Inject(job Tree, r Reading, d engine.Decision, o Options) (Tree, Injection, error) {
	in := Injection{Version: injectionVersion, Gang: d.Gang}
	if !d.Placed {
		return nil, in, fmt.Errorf("write decision into job %s: nothing was placed", r.Request.JobID)
	}
	for _, plan := range d.Groups {
		at := slices.IndexFunc(r.Request.Groups, func(g engine.GroupAsk) bool { return g.Name == plan.Name })
		if at < 0 {
			return nil, in, fmt.Errorf("write decision into job %s: it asks nothing for group %q", r.Request.JobID, plan.Name)
		}
		one := GroupInjection{Group: plan.Name, AskHash: r.Hashes[plan.Name], Count: r.Request.Groups[at].Count, Plan: plan}
		if _, elastic := r.Elastic(plan.Name); elastic {
			one.Count, one.Most = len(plan.Placements), one.Count
		}
		one.Plan.Placements = nil
		for _, shape := range plan.Tasks {
			if len(shape.Blocks) == 0 {
				continue // a group of no allocations: there is nothing to grant yet
			}
			token, err := sign(r, plan.Name, shape, o)
			if err != nil {
				return nil, in, err
			}
			one.Grants = append(one.Grants, TaskGrant{Task: shape.Task, Token: token})
		}
		in.Groups = append(in.Groups, one)
	}
	out := cloneTree(job)
	for _, one := range in.Groups {
		write(out, one)
	}
	return out, in, nil
}

// sign grants a task what its plan gives it. The id follows from what the grant is for, so that the same decision
// gives the same token.
func sign(r Reading, group string, shape engine.TaskShape, o Options) (string, error) {
	of := []string{r.Request.Namespace, r.Request.JobID, group, shape.Task, sum(shape.Ask)}
	if mib := shape.GrantMiB(); mib != shape.Ask.MemoryMiB {
		of = append(of, strconv.FormatUint(mib, 10))
	}
	gang := r.grantOf(group)
	if gang != nil {
		of = append(of, sum(gang))
	}
	id := sha256.Sum256([]byte(strings.Join(of, "\x00")))
	g := grant.Grant{
		ID: hex.EncodeToString(id[:8]), Tenant: o.Tenant, Namespace: r.Request.Namespace, Job: r.Request.JobID, Group: group, Task: shape.Task,
		Count: shape.Ask.Count, MemoryMiB: shape.GrantMiB(), ComputePct: shape.Ask.ComputePct, QoS: shape.QoS, Vendors: shape.Ask.Vendors,
		Children: children[r.Request.Loose], Gang: gang,
	}
	token, err := g.Sign(o.Key)
	if err != nil {
		return "", fmt.Errorf("grant for group %q, task %q: %w", group, shape.Task, err)
	}
	return token, nil
}

// children are the jobs that Nomad makes of a job, by its kind.
var children = map[string]grant.Children{"parameterized": grant.Dispatched, "periodic": grant.Periodic}

// Apply writes an earlier injection into a job again, in place of what was injected before. Stale names the groups
// that ask for something else now, or for more allocations, or had no plan: they are stripped and need a decision. A
// new job has the zero Injection, and all of its groups are stale.
func Apply(job Tree, r Reading, in Injection) (out Tree, stale []string) {
	out = Strip(job)
	for _, g := range r.Request.Groups {
		at := slices.IndexFunc(in.Groups, func(one GroupInjection) bool { return one.Group == g.Name })
		wanted := g.Count
		if least, elastic := r.Elastic(g.Name); elastic {
			wanted = least
		}
		if at < 0 || in.Version != injectionVersion || in.Groups[at].AskHash != r.Hashes[g.Name] ||
			in.Groups[at].Count < wanted && r.Request.Loose == "" {
			stale = append(stale, g.Name)
			continue
		}
		write(out, in.Groups[at])
	}
	return out, stale
}

// Shrink is the injection to store after Apply wrote it into a job that asks for fewer allocations: the room of the
// others is given back, so that asking for them again needs a decision.
func Shrink(r Reading, in Injection) Injection {
	in.Groups = slices.Clone(in.Groups)
	for _, g := range r.Request.Groups {
		for i := range in.Groups {
			if in.Groups[i].Group == g.Name {
				in.Groups[i].Count = min(in.Groups[i].Count, g.Count)
			}
		}
	}
	return in
}

// Merge is the injection after some groups were decided anew: those of newer, and those of older for the other
// groups that the job still asks for, in the order of the job.
func Merge(r Reading, older, newer Injection) Injection {
	out := Injection{Version: injectionVersion, Gang: newer.Gang}
	if out.Gang == nil && r.Gang != nil {
		out.Gang = older.Gang
	}
	for _, g := range r.Request.Groups {
		for _, from := range []Injection{newer, older} {
			at := slices.IndexFunc(from.Groups, func(one GroupInjection) bool { return one.Group == g.Name })
			if at >= 0 && from.Version == injectionVersion {
				out.Groups = append(out.Groups, from.Groups[at])
				break
			}
		}
	}
	return out
}

// write puts the injection of one group into the tree.
func write(job Tree, in GroupInjection) {
	for _, g := range objects(job, "TaskGroups") {
		if getString(g, "Name") != in.Group {
			continue
		}
		stripGroup(g)
		if nodes := in.Plan.Nodes; len(nodes) > 0 {
			if in.Most > 0 {
				nodes = append([]string{countMark + strconv.Itoa(in.Most)}, nodes...)
				set(g, "Count", json.Number(strconv.Itoa(in.Count)))
			}
			// First, since Nomad adds its own at the end and compares in order: a job read back and written again is equal.
			set(g, "Constraints", append([]any{anyOf(nodeTarget, nodes)}, getList(g, "Constraints")...))
		}
		for _, t := range objects(g, "Tasks") {
			writeTask(t, in)
		}
	}
}

func writeTask(t map[string]any, in GroupInjection) {
	name := getString(t, "Name")
	for _, shape := range in.Plan.Tasks {
		if shape.Task != name {
			continue
		}
		resources := getMap(t, "Resources")
		if resources == nil {
			resources = map[string]any{}
			set(t, "Resources", resources)
		}
		devices := slices.Clone(getList(resources, "Devices"))
		for _, b := range shape.Blocks {
			devices = append(devices, device(b))
		}
		if len(shape.Blocks) > 0 {
			set(resources, "Devices", devices)
		}
	}
	for _, g := range in.Grants {
		if config := getMap(t, "Config"); g.Task == name && config != nil {
			config["grant"] = g.Token
		}
	}
}

// TenantOf is the tenant whose grant of this key a job of Nomad carries, empty when it carries none that is its own: a
// grant names its job, so that a copy says nothing.
func TenantOf(job Tree, key ed25519.PrivateKey) string {
	public, _ := key.Public().(ed25519.PublicKey)
	for _, g := range objects(job, "TaskGroups") {
		for _, t := range objects(g, "Tasks") {
			token, _ := getMap(t, "Config")["grant"].(string)
			if read, err := grant.Parse(token, public); err == nil && read.Namespace == cmp.Or(getString(job, "Namespace"), "default") && read.Covers(getString(job, "ID")) {
				return read.Tenant
			}
		}
	}
	return ""
}

// device is the device block of a plan in the form of Nomad's API.
func device(b engine.Block) map[string]any {
	constraints := make([]any, 0, len(b.Allow))
	for _, a := range b.Allow {
		if a.Measure {
			constraints = append(constraints, map[string]any{"LTarget": a.Attribute, "RTarget": strings.Join(a.Values, ","), "Operand": "="})
			continue
		}
		constraints = append(constraints, anyOf(a.Attribute, a.Values))
	}
	return map[string]any{"Name": b.Device, "Count": json.Number(strconv.Itoa(b.Count)), "Constraints": constraints, "Affinities": nil}
}

func anyOf(target string, values []string) map[string]any {
	return map[string]any{"LTarget": target, "RTarget": strings.Join(append([]string{mark}, values...), ","), "Operand": operandAny}
}

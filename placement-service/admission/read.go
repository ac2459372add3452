package admission

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/heteroflow/heteroflow/placement-service/engine"
)

// Driver is the task driver that understands the accelerator block.
const Driver = "heteroflow"

// Nomad's defaults for what a job leaves out.
const (
	defaultCPU       = 100
	defaultMemoryMiB = 300
	defaultDiskMiB   = 300
	defaultPriority  = 50
)

// reader collects what is read and what is wrong.
type reader struct {
	problems Problems
	paths    map[place]string
	group    string
	task     string
	gangs    map[string]gangBlock // by group
}

func (r *reader) bad(path, format string, args ...any) {
	r.problems = append(r.problems, Problem{Path: path, Group: r.group, Task: r.task, Text: fmt.Sprintf(format, args...)})
}

// Read takes the accelerator asks out of a job. What was injected before is not read. The problems say what to write
// instead; with any, the reading is not to be used. Jobs without an ask are read without problems as far as Nomad
// can find their faults itself.
func Read(job Tree) (Reading, Problems) {
	r := &reader{paths: map[place]string{}}
	out := Reading{Type: "service", Hashes: map[string]string{}, paths: r.paths}
	if job == nil {
		r.bad("", "there is no job")
		return out, r.problems
	}
	r.once("", job, "ID", "Type", "Priority", "Datacenters", "NodePool", "Constraints", "Spreads", "TaskGroups", "Periodic", "ParameterizedJob", "Namespace")
	if t := getString(job, "Type"); t != "" {
		out.Type = t
	}
	out.Runtime = r.runtime(job)
	out.Request = engine.Request{
		JobID: getString(job, "ID"), Namespace: cmp.Or(getString(job, "Namespace"), "default"),
		Priority: int(r.number("Priority", get(job, "Priority"), defaultPriority)),
		NodePool: cmp.Or(getString(job, "NodePool"), "default"), Datacenters: datacenters(job), Loose: loose(job, out.Type),
	}
	constraints, distinct := readConstraints(job)
	out.Request.DistinctHosts = distinct
	ofJob := rules{constraints: constraints, apart: r.apart("", job, true), spread: r.spread("", job)}
	seen := map[string]bool{}
	for i, v := range r.list("TaskGroups", get(job, "TaskGroups")) {
		path := fmt.Sprintf("TaskGroups[%d]", i)
		g, ok := v.(map[string]any)
		if !ok {
			r.bad(path, "is not an object: write a group with a name and tasks")
			continue
		}
		ask, has := r.readGroup(path, g, ofJob)
		if !has {
			continue
		}
		if seen[ask.Name] {
			r.bad(path+".Name", "two groups are named %q: give each its own name", ask.Name)
		}
		seen[ask.Name] = true
		out.Request.Groups = append(out.Request.Groups, ask)
	}
	r.gather(job, &out)
	for _, g := range out.Request.Groups {
		out.Hashes[g.Name] = askHash(out.Request, g)
		if g.Gang && out.Gang != nil {
			out.Hashes[g.Name] = gangHash(out.Hashes[g.Name], *out.Gang, out.Members)
		}
	}
	return out, r.problems
}

// datacenters lists where the job may run; empty for anywhere, which is Nomad's default.
func datacenters(job Tree) []string {
	if dcs := texts(get(job, "Datacenters")); !slices.Equal(dcs, []string{"*"}) {
		return dcs
	}
	return nil
}

// loose says which kind of job it is whose allocations start without passing here again; empty for the others.
func loose(job Tree, jobType string) string {
	switch {
	case get(job, "ParameterizedJob") != nil:
		return "parameterized"
	case get(job, "Periodic") != nil:
		return "periodic"
	case jobType == "system" || jobType == "sysbatch":
		return jobType
	}
	return ""
}

// disk is the size of the group's ephemeral disk.
func (r *reader) disk(path string, g map[string]any) int {
	disk, _ := get(g, "EphemeralDisk").(map[string]any)
	return int(r.number(path+".EphemeralDisk.SizeMB", get(disk, "SizeMB"), defaultDiskMiB))
}

// countOf is the count of a group as its user wrote it.
func countOf(g map[string]any) any {
	if count, elastic := ownCount(g); elastic {
		return count
	}
	return get(g, "Count")
}

// readGroup reads one group and whether one of its tasks has an ask.
func (r *reader) readGroup(path string, g map[string]any, ofJob rules) (engine.GroupAsk, bool) {
	r.group = getString(g, "Name")
	defer func() { r.group, r.task = "", "" }()
	r.once(path, g, "Name", "Count", "Tasks", "Constraints", "Spreads", "Networks", "EphemeralDisk")
	ofGroup, distinct := readConstraints(g)
	ask := engine.GroupAsk{
		Name: r.group, Count: int(r.number(path+".Count", countOf(g), 1)),
		DiskMiB:       r.disk(path, g),
		Constraints:   slices.Concat(ofJob.constraints, ofGroup),
		DistinctHosts: distinct || staticPort(g),
		Apart:         slices.Concat(ofJob.apart, r.apart(path+".", g, false)),
		Spread:        slices.Concat(ofJob.spread, r.spread(path+".", g)),
	}
	has := false
	seen := map[string]bool{}
	for i, v := range r.list(path+".Tasks", get(g, "Tasks")) {
		at := fmt.Sprintf("%s.Tasks[%d]", path, i)
		t, ok := v.(map[string]any)
		if !ok {
			r.bad(at, "is not an object: write a task with a name, a driver and config")
			continue
		}
		task, cpu, memory := r.readTask(at, t)
		if task.Ask != nil && seen[task.Name] {
			r.bad(at+".Name", "two tasks are named %q: give each its own name", task.Name)
		}
		seen[task.Name] = true
		ofTask, _ := readConstraints(t)
		ask.Constraints = append(ask.Constraints, ofTask...)
		ask.Apart = append(ask.Apart, r.apart(at+".", t, false)...)
		ask.CPUMHz += cpu
		ask.MemoryMiB += memory
		ask.Tasks = append(ask.Tasks, task)
		has = has || task.Ask != nil
	}
	if has && ask.Count < 0 {
		r.task = ""
		r.bad(path+".Count", "%d is negative: write how many allocations of the group are to run, 0 or more", ask.Count)
	}
	return ask, has
}

func (r *reader) readTask(path string, t map[string]any) (task engine.TaskAsk, cpuMHz, memoryMiB int) {
	r.task = getString(t, "Name")
	r.once(path, t, "Name", "Driver", "Config", "Resources", "Constraints")
	resources := getMap(t, "Resources")
	r.once(path+".Resources", resources, "CPU", "Cores", "MemoryMB", "Devices")
	cpuMHz = int(r.number(path+".Resources.CPU", get(resources, "CPU"), defaultCPU))
	if cores, ok := integer(get(resources, "Cores")); ok && cores > 0 {
		cpuMHz = 0 // whole cores: how many MHz that is differs by node, and Nomad counts them itself
	}
	memoryMiB = int(r.number(path+".Resources.MemoryMB", get(resources, "MemoryMB"), defaultMemoryMiB))
	config := getMap(t, "Config")
	task = engine.TaskAsk{Name: r.task, Driver: getString(t, "Driver"), Runtime: runtimeOf(getString(t, "Driver"), config)}
	r.readGang(path+".Config", &task, config)
	block, written := config["accelerator"]
	if !written || block == nil {
		return task, cpuMHz, memoryMiB
	}
	at := path + ".Config.accelerator"
	if task.Driver != Driver {
		r.bad(at, "the %s driver knows no accelerator block: write driver = %q, or a device block in resources", cmp.Or(task.Driver, "task's"), Driver)
		return task, cpuMHz, memoryMiB
	}
	for i, d := range objects(resources, "Devices") {
		if name := getString(d, "Name"); isAccelerator(name) && !ownDevice(d) {
			r.bad(fmt.Sprintf("%s.Resources.Devices[%d]", path, i),
				"device %q stands beside an accelerator block, and one task takes cards in one way: leave out one of the two", name)
		}
	}
	if l, ok := block.([]any); ok && len(l) == 1 { // as a block in HCL becomes
		block, at = l[0], at+"[0]"
	}
	r.paths[place{r.group, r.task}] = at
	task.Ask = r.readAsk(at, block)
	r.limitToImages(path+".Config", config, task.Ask)
	return task, cpuMHz, memoryMiB
}

// The runtimes of our driver; the first is the one of a task that names none.
const (
	runtimeDocker  = "docker"
	runtimeProcess = "process"
)

// runtimeOf is what a task of our driver needs on its node. What the driver does not know it refuses itself.
func runtimeOf(driver string, config map[string]any) string {
	if driver != Driver {
		return ""
	}
	switch config["runtime"] {
	case nil, "", runtimeDocker:
		return runtimeDocker
	case runtimeProcess:
		return runtimeProcess
	}
	return ""
}

// isAccelerator reports whether a device id means cards as they are offered by our plugins or the makers' own.
func isAccelerator(id string) bool {
	parts := strings.SplitN(id, "/", 3)
	kind := parts[0]
	if len(parts) > 1 {
		kind = parts[1]
	}
	return slices.Contains([]string{"gpu", "vgpu", "mig", "npu", "mlu", "xpu", "dcu"}, kind)
}

// readConstraints reads the node constraints of a job, group or task, without what was injected and what Nomad adds
// by itself, and whether the allocations have to be on different nodes.
func readConstraints(m map[string]any) (out []engine.Constraint, distinctHosts bool) {
	for _, c := range objects(m, "Constraints") {
		one := engine.Constraint{L: getString(c, "LTarget"), R: getString(c, "RTarget"), Operand: cmp.Or(getString(c, "Operand"), "=")}
		switch {
		case one.Operand == "distinct_hosts":
			distinctHosts = distinctHosts || !strings.EqualFold(one.R, "false")
		case one.Operand == "distinct_property" || ownConstraint(c) || implied(one):
		default:
			out = append(out, one)
		}
	}
	return out, distinctHosts
}

// implied reports whether Nomad's servers add this constraint by themselves, so that a job read back has it. It
// says what the node's Nomad must be able to do, and is left to Nomad.
func implied(c engine.Constraint) bool {
	switch c.L {
	case "${attr.nomad.service_discovery}":
		return c.R == "true"
	case "${attr.nomad.version}", "${attr.consul.version}", "${attr.vault.version}":
		return c.Operand == "semver"
	}
	return strings.HasPrefix(c.L, "${attr.plugins.cni.version.") && c.Operand == "semver"
}

// staticPort reports whether the group has a fixed port, of which a node has one.
func staticPort(g map[string]any) bool {
	for _, n := range objects(g, "Networks") {
		for _, p := range objects(n, "ReservedPorts") {
			if v, ok := integer(get(p, "Value")); ok && v > 0 {
				return true
			}
		}
	}
	return false
}

// once refuses fields that are written twice in different case: which one counts would depend on the reader.
func (r *reader) once(path string, m map[string]any, names ...string) {
	for _, name := range names {
		var same []string
		for k := range m {
			if strings.EqualFold(k, name) {
				same = append(same, k)
			}
		}
		if len(same) > 1 {
			slices.Sort(same)
			r.bad(strings.TrimPrefix(path+"."+name, "."), "%s are one field written twice: write %s once", strings.Join(same, " and "), name)
		}
	}
}

func (r *reader) list(path string, v any) []any {
	l, ok := v.([]any)
	if v != nil && !ok {
		r.bad(path, "is not a list: write it in [ ]")
	}
	return l
}

func (r *reader) number(path string, v any, otherwise int64) int64 {
	if v == nil {
		return otherwise
	}
	n, ok := integer(v)
	if !ok || n > 1<<31 || n < -1<<31 {
		r.bad(path, "%s is not a whole number", show(v))
		return otherwise
	}
	return n
}

func texts(v any) []string {
	var out []string
	l, _ := v.([]any)
	for _, x := range l {
		if s, ok := x.(string); ok {
			out = append(out, s)
		}
	}
	return out
}
